"""How a pod reaches its cluster's API server, and proves who it is."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twinspeed.errors import InputError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server. The files are read for each connection, because Kubernetes replaces them while the pod runs."""

    url: str
    """Its root, such as https://10.96.0.1:443."""
    token_file: Path
    ca_file: Path

    @classmethod
    def of_this_pod(cls, environ: Mapping[str, str], account: Path = _ACCOUNT) -> "Cluster":
        """The cluster that this process runs in, and the pod's service account.

        Raises:
            InputError: this is no pod, or one without a service account's token.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        cluster = cls(
            url=f"https://{f'[{host}]' if host and ':' in host else host}:{port}",
            token_file=account / "token",
            ca_file=account / "ca.crt",
        )
        if not host:
            raise InputError(
                "`kubernetes` finds replicas only inside a cluster, and KUBERNETES_SERVICE_HOST is not set; "
                "run the router in a pod, or list the `replicas`"
            )
        for file in (cluster.token_file, cluster.ca_file):
            if not file.is_file():
                raise InputError(f"{file} is missing: give the router's pod a service account and mount its token")
        return cluster

    def headers(self) -> dict[str, str]:
        """Raises OSError where the token cannot be read."""
        token = "".join(self.token_file.read_text("ascii", "replace").split())
        return {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def trust(self) -> ssl.SSLContext | bool:
        """What to check the server's certificate against. Raises OSError where it cannot be read or is none."""
        return ssl.create_default_context(cafile=str(self.ca_file)) if self.url.startswith("https:") else True
