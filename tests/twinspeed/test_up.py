"""What `twinspeed up` decides before it starts anything."""

import pytest

from twinspeed.up import split_cpus

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("cpus", "engines", "shares"),
    [
        ([0, 1], 2, ["0", "1"]),
        ([0, 1, 2, 3, 4, 5, 6, 7], 2, ["0,1,2", "4,5,6"]),
        ([4, 5, 9], 1, ["4,5"]),
        ([3], 2, ["3", "3"]),
        ([0, 1], 3, ["0", "1", "0"]),
    ],
)
def test_engines_on_one_machine_compute_on_cpus_of_their_own(cpus: list[int], engines: int, shares: list[str]) -> None:
    assert split_cpus(cpus, engines) == shares
