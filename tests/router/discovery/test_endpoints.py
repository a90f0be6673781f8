"""Which replicas a Service's slices stand for."""

from typing import Any

import pytest

from router.discovery.endpoints import Slice, replicas
from tests.router.discovery.api_server import Json, endpoint, of_pod, slice_of

pytestmark = pytest.mark.unit


def found(*slices: Json, port: int | str = "http") -> set[str]:
    return set(replicas([parsed(s) for s in slices], port).urls)


def parsed(described: Json) -> Slice:
    return Slice.model_validate({**described, "metadata": {**described["metadata"], "resourceVersion": "1"}})


@pytest.mark.parametrize(
    ("conditions", "used"),
    [
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": None}, True),
        ({}, True),
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": False}, False),
    ],
)
def test_an_endpoint_is_used_while_it_is_ready(conditions: dict[str, bool | None], used: bool) -> None:
    assert bool(found(slice_of("a", endpoint("10.0.0.1", **conditions)))) is used


def test_conditions_that_are_not_given_mean_ready() -> None:
    assert found(slice_of("a", {"addresses": ["10.0.0.1"]})) == {"http://10.0.0.1:8000"}


def test_the_slices_of_a_service_are_one_set() -> None:
    a, b = slice_of("a", "10.0.0.1", "10.0.0.2"), slice_of("b", "10.0.0.2", "10.0.0.3")
    assert found(a, b) == {f"http://10.0.0.{n}:8000" for n in (1, 2, 3)}


def test_an_address_of_version_6_stands_in_brackets() -> None:
    assert found(slice_of("a", "fd00::1", family="IPv6")) == {"http://[fd00::1]:8000"}


def test_a_host_name_is_a_host() -> None:
    assert found(slice_of("a", "gpu.example", family="FQDN")) == {"http://gpu.example:8000"}


def test_a_pod_with_both_kinds_of_address_is_one_replica() -> None:
    four = slice_of(
        "4", of_pod("p1", endpoint("10.0.0.1", ready=True)), of_pod("p2", endpoint("10.0.0.2", ready=False))
    )
    six = slice_of(
        "6",
        of_pod("p1", endpoint("fd00::1", ready=True)),
        of_pod("p2", endpoint("fd00::2", ready=True)),
        of_pod("p3", endpoint("fd00::3", ready=True)),
        family="IPv6",
    )
    assert found(six, four) == {"http://10.0.0.1:8000", "http://[fd00::3]:8000"}


def test_the_first_of_an_endpoint_s_addresses_counts() -> None:
    assert found(slice_of("a", {"addresses": ["10.0.0.1", "10.0.0.9"]}, {"addresses": []})) == {"http://10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("port", "number"),
    [
        ("http", 8000),
        (8000, 8000),
        ("8000", 8000),
        ("metrics", 9000),
        (9000, 9000),
        ("dns", None),
        (53, None),
        (80, None),
    ],
)
def test_the_port_goes_by_name_or_number(port: int | str, number: int | None) -> None:
    ports = [
        {"name": "http", "port": 8000},
        {"name": "metrics", "port": 9000, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    assert found(slice_of("a", "10.0.0.1", ports=ports), port=port) == (
        {f"http://10.0.0.1:{number}"} if number else set()
    )


def test_a_port_may_have_another_number_in_each_slice() -> None:
    other = [{"name": "http", "port": 9000}]
    assert found(slice_of("a", "10.0.0.1"), slice_of("b", "10.0.0.2", ports=other)) == {
        "http://10.0.0.1:8000",
        "http://10.0.0.2:9000",
    }


def test_ports_that_do_not_match_are_told() -> None:
    other = [{"name": "", "port": 8000}, {"name": "grpc", "port": 9000}]
    assert replicas([parsed(slice_of("a", ports=other))], "http").other_ports == {"(no name)=8000", "grpc=9000"}
    assert replicas([parsed(slice_of("a"))], "http").other_ports == set()


@pytest.mark.parametrize("field", ["endpoints", "ports"])
@pytest.mark.parametrize("value", [None, []])
def test_nothing_may_be_null(field: str, value: Any) -> None:
    assert found({**slice_of("a", "10.0.0.1"), field: value}) == set()
