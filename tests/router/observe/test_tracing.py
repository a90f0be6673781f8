"""Spans as a collector receives them, and the trace context that engines are given."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes

from router.observe import Observer, tracing
from router.record import RequestRecord
from tests.router.observe.samples import NAME, STARTED, at, config, read, record, refused

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{PARENT}-01".encode()


class Collector:
    """An OTLP receiver over HTTP on a free port."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def trace(collector: Collector, *requests: tuple[RequestRecord, bytes | None]) -> tuple[Observer, list[bytes]]:
    """Observes requests, each sent to an engine with a client's header; returns the headers that engines got."""
    observer = Observer(config(otlp_endpoint=collector.url))

    async def run() -> list[bytes]:
        await observer.open()
        given = []
        for each, header in requests:
            value = observer.traceparent(each, header)
            assert value is not None
            given.append(value)
            observer.observe(each)
        await observer.close()
        return given

    return observer, asyncio.run(run())


def value(given: AnyValue) -> str | int | float | bool:
    result: str | int | float | bool = getattr(given, str(given.WhichOneof("value")))
    return result


def attributes(span: Span) -> dict[str, str | int | float | bool]:
    return {each.key: value(each.value) for each in span.attributes}


def test_a_request_becomes_a_child_of_the_clients_span_and_the_engines_a_child_of_it(collector: Collector) -> None:
    _, [given] = trace(collector, (record(traceparent=None), HEADER))
    [span] = collector.spans
    version, trace_id, span_id, flags = given.decode().split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert span.trace_id.hex() == TRACE
    assert span.span_id.hex() == span_id
    assert span.parent_span_id.hex() == PARENT
    assert span_id != PARENT
    assert collector.paths == ["/v1/traces"]


def test_a_request_without_trace_context_begins_a_trace(collector: Collector) -> None:
    _, given = trace(collector, (record(traceparent=None), None), (record(request_id="r-2", traceparent=None), None))
    assert [f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01".encode() for span in collector.spans] == given
    assert [span.parent_span_id for span in collector.spans] == [b"", b""]
    assert len({span.trace_id for span in collector.spans}) == len({span.span_id for span in collector.spans}) == 2


def test_each_attempt_of_a_request_shows_engines_the_same_span(collector: Collector) -> None:
    observer = Observer(config(otlp_endpoint=collector.url))
    tried = record(traceparent=None)
    assert observer.traceparent(tried, HEADER) == observer.traceparent(tried, HEADER)


def test_requests_of_one_name_differ_by_their_time_and_by_their_process(collector: Collector) -> None:
    observers = [Observer(config(otlp_endpoint=collector.url)) for _ in range(2)]
    requests = [record(started_at=STARTED + microseconds * 1e-6) for microseconds in range(100)]
    assert len({observer.traceparent(each, HEADER) for observer in observers for each in requests}) == 200


def test_a_client_that_does_not_sample_is_obeyed(collector: Collector) -> None:
    unsampled = f"00-{TRACE}-{PARENT}-00".encode()
    _, given = trace(collector, (record(traceparent=None), unsampled), (refused(), None))
    assert given[0].startswith(f"00-{TRACE}-".encode())
    assert given[0].endswith(b"-00")
    assert [attributes(span)["url.path"] for span in collector.spans] == ["/v1/completions"]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"00",
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        f"00-{TRACE}-{PARENT}-01-more".encode(),
        f"00-{TRACE}-{PARENT}-01\n".encode(),
        b"00-\xff" + f"{TRACE[1:]}-{PARENT}-01".encode(),
    ],
)
def test_a_trace_context_that_is_none_is_replaced(collector: Collector, header: bytes) -> None:
    finished = record(traceparent=None)
    _, [given] = trace(collector, (finished, header))
    assert finished.traceparent is None
    assert collector.spans[0].parent_span_id == b""
    assert given.decode().split("-")[1] == collector.spans[0].trace_id.hex()


def test_without_a_collector_the_clients_context_is_kept_and_none_is_made() -> None:
    observer = Observer(config())
    finished = record(traceparent=None)
    assert observer.traceparent(finished, HEADER) is None
    assert finished.traceparent == HEADER.decode()


def test_a_span_says_what_the_request_was(collector: Collector) -> None:
    trace(collector, (record(traceparent=None), None))
    [span] = collector.spans
    assert span.name == f"chat {NAME}"
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert span.start_time_unix_nano == int(STARTED * 1e9)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 2_500_000_000
    assert span.status.code == 0
    assert attributes(span) == {
        gen_ai_attributes.GEN_AI_OPERATION_NAME: "chat",
        gen_ai_attributes.GEN_AI_PROVIDER_NAME: "twinspeed",
        gen_ai_attributes.GEN_AI_REQUEST_MODEL: NAME,
        gen_ai_attributes.GEN_AI_REQUEST_STREAM: True,
        gen_ai_attributes.GEN_AI_RESPONSE_MODEL: f"{NAME}:fast",
        gen_ai_attributes.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: 0.5,
        gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS: 100,
        gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS: 41,
        gen_ai_attributes.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 64,
        http_attributes.HTTP_RESPONSE_STATUS_CODE: 200,
        url_attributes.URL_PATH: "/v1/chat/completions",
        "twinspeed.request_id": "r-1",
        "twinspeed.key_id": "k-1",
        "twinspeed.variant": "fast",
        "twinspeed.replica": "fast-7f3a90c2",
        "twinspeed.reason": "cheapest",
        "twinspeed.lane": "batch",
        "twinspeed.tier": "flex",
        "twinspeed.attempts": 1,
        "twinspeed.client_left": False,
        "twinspeed.queue_s": 0.75,
        "twinspeed.cost_usd": 1.5,
    }
    [resource] = collector.requests[0].resource_spans
    assert {each.key: value(each.value) for each in resource.resource.attributes}["service.name"] == "twinspeed-router"
    assert resource.scope_spans[0].scope.name == "twinspeed.router"


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/responses", "chat"),
        ("/v1/messages/count_tokens", "count_tokens"),
    ],
)
def test_operations_have_the_conventions_names(collector: Collector, path: str, operation: str) -> None:
    trace(collector, (record(path=path), None))
    assert collector.spans[0].name == f"{operation} {NAME}"


@pytest.mark.parametrize(
    ("request_ended", "is_error"),
    [
        (record(), False),
        (refused(), False),
        (record(status=503, error="variant_unavailable"), True),
        (record(error="engine_failed"), True),
        (record(client_left=True, status=499), False),
    ],
)
def test_a_span_is_an_error_where_this_side_failed(
    collector: Collector, request_ended: RequestRecord, is_error: bool
) -> None:
    trace(collector, (request_ended, None))
    [span] = collector.spans
    assert (span.status.code == 2) == is_error
    assert attributes(span).get(error_attributes.ERROR_TYPE) == request_ended.error


def test_spans_that_the_collector_refuses_are_counted(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.status = 400
    observer, _ = trace(collector, (record(), None), (record(), None))
    assert at(read(observer), "spans_dropped_total", reason="not_taken") == 2
    assert "400" in caplog.text


def test_a_collector_that_is_not_there_holds_nothing_up(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_CAPACITY", 10)
    monkeypatch.setattr(tracing, "_CLOSE_TIMEOUT", 0.1)
    observer = Observer(config(otlp_endpoint="http://127.0.0.1:1"))

    async def run() -> None:
        await observer.open()
        for _ in range(25):
            observer.observe(record())
        await observer.close()

    asyncio.run(run())
    assert at(read(observer), "spans_dropped_total", reason="queue_full") == 15


def test_where_opentelemetry_is_not_installed_tracing_says_how_to_install_it() -> None:
    code = """
import asyncio, sys
sys.modules["opentelemetry.sdk"] = None
from router.observe import Observer
from tests.router.observe.samples import config, record
Observer(config()).observe(record())
asyncio.run(Observer(config(otlp_endpoint="http://127.0.0.1:4318")).open())
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "InputError: otlp_endpoint http://127.0.0.1:4318: opentelemetry.sdk" in answer.stderr
    assert "pip install 'twinspeed[tracing]'" in answer.stderr
