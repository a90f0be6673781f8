"""Claims, and that nothing is changed by a runner which has lost its own."""

import time
from collections.abc import Callable

import pytest

from router.batches import BatchStore
from router.batches.outputs import finish
from router.batches.pace import Pace
from router.batches.progress import ClaimLostError, Progress
from router.batches.records import BatchRecord, LineResult
from tests.router.batches.serving import create, line, lines

pytestmark = pytest.mark.unit

LEASE = 10.0


def test_a_batch_is_claimed_by_one_until_its_claim_runs_out(store: BatchStore) -> None:
    batch = create(store, lines(line(1)))
    first, second = Progress(store, "first"), Progress(store, "second")
    assert [each.id for each in first.claim(100, LEASE, [], 9)] == [batch.id]
    assert second.claim(109, LEASE, [], 9) == []
    assert first.renew(109, LEASE) == {batch.id: "validating"}
    assert second.claim(118, LEASE, [], 9) == []
    assert [each.id for each in second.claim(119.1, LEASE, [], 9)] == [batch.id]
    assert first.renew(120, LEASE) == {}
    assert first.claim(120, LEASE, [], 9) == []


def test_a_claim_from_before_the_machine_was_started_counts_for_nothing(store: BatchStore) -> None:
    batch = create(store, lines(line(1)))
    Progress(store, "first").claim(1_000_000, LEASE, [], 9)
    assert [each.id for each in Progress(store, "second").claim(50, LEASE, [], 9)] == [batch.id]


def test_what_is_to_be_cancelled_comes_first_then_the_oldest(store: BatchStore) -> None:
    made = [create(store, lines(line(1))) for _ in range(4)]
    progress = Progress(store, "one")
    assert [each.id for each in progress.claim(0, LEASE, [made[0].id], 2)] == [made[1].id, made[2].id]
    store.cancel_batch(made[2].id, None)
    assert [each.id for each in progress.claim(0, LEASE, [], 1)] == [made[2].id]


def test_a_batch_that_nobody_has_begun_is_cancelled_at_once(store: BatchStore) -> None:
    batch = create(store, lines(line(1)))
    cancelled = store.cancel_batch(batch.id, None)
    assert (cancelled.status, store.get_batch(batch.id, None)) == ("cancelled", cancelled)
    assert Progress(store, "one").claim(0, LEASE, [], 9) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda progress, batch: progress.begin(batch, 1),
        lambda progress, batch: progress.refuse(batch, []),
        lambda progress, batch: progress.finalize(batch),
        lambda progress, batch: progress.record(batch, [LineResult(1, False, b"")]),
        lambda progress, batch: finish(progress, batch, "cancelled", Pace()),
    ],
    ids=["begin", "refuse", "finalize", "record", "finish"],
)
def test_who_has_lost_a_claim_changes_nothing(
    store: BatchStore, change: Callable[[Progress, BatchRecord], object]
) -> None:
    create(store, lines(line(1), line(2)))
    first, second = Progress(store, "first"), Progress(store, "second")
    [batch] = first.claim(time.monotonic(), LEASE, [], 1)
    batch = first.begin(batch, 2)
    first.record(batch, [LineResult(1, False, b"{}\n")])
    [taken] = second.claim(time.monotonic() + 2 * LEASE, LEASE, [], 1)
    contents = set(store.blobs.path("").iterdir())
    with pytest.raises(ClaimLostError):
        change(first, batch)
    assert store.get_batch(batch.id, None) == taken
    assert second.answered_lines(taken) == {1}
    assert set(store.blobs.path("").iterdir()) == contents
