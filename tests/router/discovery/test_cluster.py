"""A pod finds its API server and its own credentials."""

from pathlib import Path

import pytest

from router.discovery import Cluster
from twinspeed.errors import InputError

pytestmark = pytest.mark.unit


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_takes_the_server_from_the_environment(account: Path, host: str, url: str) -> None:
    cluster = Cluster.of_this_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, account)
    assert cluster.url == url
    assert cluster.headers()["Authorization"] == "Bearer secret"


def test_says_that_this_is_no_pod(account: Path) -> None:
    with pytest.raises(InputError, match="KUBERNETES_SERVICE_HOST is not set; run the router in a pod, or list"):
        Cluster.of_this_pod({}, account)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_says_what_the_service_account_lacks(account: Path, name: str) -> None:
    (account / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing: give the router's pod a service account"):
        Cluster.of_this_pod({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, account)
