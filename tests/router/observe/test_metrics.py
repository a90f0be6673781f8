"""What Prometheus is shown of the requests of one process."""

import asyncio
import time

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from router.observe import Observer
from router.record import RequestRecord
from tests.router.observe.samples import NAME, at, config, parse, read, record, refused

pytestmark = pytest.mark.unit

SERVED = {"model": NAME, "variant": "fast"}


def observed(*records: RequestRecord, **changes: object) -> Observer:
    """An observer that saw these, or one request with the given changes."""
    observer = Observer(config())
    for each in records or (record(**changes),):
        observer.observe(each)
    return observer


def test_a_stream_that_went_well_is_counted_everywhere_once() -> None:
    page = read(observed())
    assert at(page, "requests_total", status="200", **SERVED) == 1
    assert at(page, "choices_total", reason="cheapest", **SERVED) == 1
    for name, value in (("time_to_first_byte", 0.5), ("request", 2.5), ("tpot", 0.05)):
        assert at(page, f"{name}_seconds_count", **SERVED) == 1
        assert at(page, f"{name}_seconds_sum", **SERVED) == pytest.approx(value)
    assert at(page, "queue_seconds_sum", lane="batch") == 0.75
    assert at(page, "cost_usd_total", **SERVED) == 1.5
    for kind, count in (("prompt", 100), ("cached", 64), ("completion", 41)):
        assert at(page, "tokens_total", kind=kind, **SERVED) == count
    for kind, ratio in (("ttft", 2.0), ("e2e", 1.0), ("cost", 0.5)):
        assert at(page, "prediction_ratio_sum", kind=kind, **SERVED) == ratio
    assert at(page, "slo_violations_total", kind="ttft", **SERVED) == 1
    assert at(page, "slo_violations_total", kind="tpot", **SERVED) == 0
    assert at(page, "client_disconnects_total") == 0
    assert not any(name == "errors_total" for name, _ in page)


def test_histograms_count_up_to_each_bound_and_the_bound_itself() -> None:
    page = read(observed(record(ttft_s=0.25), record(ttft_s=0.26), record(ttft_s=5000.0)))

    def up_to(bound: str) -> float | None:
        return at(page, "time_to_first_byte_seconds_bucket", le=bound, **SERVED)

    assert [up_to(bound) for bound in ("0.1", "0.25", "0.5", "600.0", "+Inf")] == [0, 1, 2, 2, 3]
    assert at(page, "time_to_first_byte_seconds_count", **SERVED) == 3


def test_what_a_client_asks_for_makes_no_series_until_it_is_known() -> None:
    page = read(observed(refused(), refused(request_id="another", path="/v1/embeddings")))
    assert at(page, "requests_total", model="none", variant="none", status="404") == 2
    assert at(page, "errors_total", code="model_not_found") == 2
    assert {labels for name, labels in page if name == "requests_total"} == {
        (("model", "none"), ("status", "404"), ("variant", "none"))
    }
    # It never came to a lane.
    assert not any(name.startswith("queue_seconds") for name, _ in page)


@pytest.mark.parametrize("changes", [{"client_left": True}, {"status": 502}, {"error": "engine_failed"}])
def test_what_was_cut_short_says_nothing_about_predictions(changes: dict[str, object]) -> None:
    page = read(observed(**changes))
    assert at(page, "prediction_ratio_count", kind="e2e", **SERVED) == 0
    assert at(page, "request_seconds_count", **SERVED) == 1
    assert at(page, "client_disconnects_total") == ("client_left" in changes)


def test_a_response_without_predictions_slo_or_usage_leaves_their_metrics_alone() -> None:
    unknown = ("predicted_ttft_s", "predicted_e2e_s", "predicted_cost", "slo_ttft_s", "slo_tpot_s", "usage", "reason")
    page = read(observed(**dict.fromkeys(unknown)))
    assert at(page, "time_to_first_byte_seconds_count", **SERVED) == 1
    for name in ("prediction_ratio_count", "slo_violations_total", "tokens_total", "cost_usd_total", "choices_total"):
        assert not any(value for (found, _), value in page.items() if found == name)


def test_gauges_tell_of_now() -> None:
    observer = Observer(config())
    for _ in range(3):
        observer.started("fast")
    observer.ended("fast")
    observer.queued(NAME, "batch", 7)
    observer.queued(NAME, "batch", 4)
    observer.replica("fast", "a:1", ready=True, breaker_open=False)
    observer.replica("fast", "b:1", ready=False, breaker_open=True)
    observer.budget_left("k-1", "month", 2_500_000_000)
    page = read(observer)
    assert at(page, "in_flight", variant="fast") == 2
    assert at(page, "queued", model=NAME, lane="batch") == 4
    assert [at(page, "replica_ready", variant="fast", replica=each) for each in ("a:1", "b:1")] == [1, 0]
    assert [at(page, "breaker_open", replica=each) for each in ("a:1", "b:1")] == [0, 1]
    assert at(page, "budget_left_usd", key="k-1", period="month") == 2.5


def test_what_is_gone_is_shown_no_more_until_it_comes_back() -> None:
    observer = Observer(config())
    observer.replica("fast", "a:1", ready=True, breaker_open=False)
    observer.budget_left("k-1", "month", 1)
    observer.replica_gone("fast", "a:1")
    observer.key_gone("k-1", "month")
    page = read(observer)
    assert not any(name in ("replica_ready", "breaker_open", "budget_left_usd") for name, _ in page)
    observer.replica("fast", "a:1", ready=True, breaker_open=False)
    assert at(read(observer), "replica_ready", variant="fast", replica="a:1") == 1


def test_events_are_counted() -> None:
    observer = Observer(config())
    observer.retried()
    observer.sent(0.0001)
    observer.limits_refused("budget_exceeded")
    observer.shadowed(NAME, "fast", agreed=True)
    observer.shadowed(NAME, "fast", agreed=False)
    observer.cascaded(NAME, "accepted")
    page = read(observer)
    assert at(page, "retries_total") == 1
    assert at(page, "overhead_seconds_bucket", le="0.0001") == 1
    assert at(page, "limits_refused_total", code="budget_exceeded") == 1
    assert [at(page, "shadow_total", agreed=each, **SERVED) for each in ("true", "false")] == [1, 1]
    assert at(page, "cascade_total", model=NAME, outcome="accepted") == 1


def test_two_routers_in_one_process_do_not_share_counts() -> None:
    one, other = observed(), Observer(config())
    assert at(read(one), "requests_total", status="200", **SERVED) == 1
    assert at(read(other), "requests_total", status="200", **SERVED) is None


def test_the_page_is_what_its_content_type_says() -> None:
    assert CONTENT_TYPE_LATEST.startswith("text/plain")
    page = asyncio.run(observed(record(model='odd "name"\\')).render())
    assert at(parse(page), "requests_total", model='odd "name"\\', variant="fast", status="200") == 1
    assert all(family.documentation for family in text_string_to_metric_families(page.decode()))


def test_the_loop_goes_on_while_a_large_page_is_made() -> None:
    observer = Observer(config())
    for number in range(200):
        observer.observe(record(model=f"m-{number}"))

    async def largest_gap() -> tuple[float, float]:
        await observer.open()
        began = last = time.perf_counter()
        gap = 0.0
        rendering = asyncio.create_task(observer.render())
        while not rendering.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
        assert len(rendering.result()) > 500_000
        await observer.close()
        return gap, last - began

    gap, whole = asyncio.run(largest_gap())
    assert gap < whole / 4


def test_a_series_may_come_while_the_page_is_made() -> None:
    observer = Observer(config())

    async def both() -> None:
        for number in range(30):
            rendering = asyncio.create_task(observer.render())
            while not rendering.done():
                observer.observe(record(model=f"m-{number % 7}", status=200 + number))
                await asyncio.sleep(0)
            parse(rendering.result())

    asyncio.run(both())
