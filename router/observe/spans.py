"""Requests as OpenTelemetry spans with the semantic conventions for generative AI. Needs OpenTelemetry's SDK."""

from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from router.observe.tracing import Context
from router.record import NANO, RequestRecord

# https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/, by the path's last part; others as they are.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_SCOPE = InstrumentationScope("twinspeed.router")


class Spans:
    """Sends spans to one collector. `endpoint` is its root, or where it takes traces: http://HOST:4318/v1/traces."""

    def __init__(self, endpoint: str) -> None:
        root = endpoint.rstrip("/").removesuffix("/v1/traces")
        self._exporter: SpanExporter = OTLPSpanExporter(endpoint=f"{root}/v1/traces")
        self._resource = Resource.create({"service.name": "twinspeed-router"})

    def export(self, requests: Iterable[tuple[RequestRecord, Context]]) -> bool:
        """Whether the collector took them. Blocks while it is slow, and for some seconds while it is not there."""
        spans = [self._span(record, context) for record, context in requests]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Ends an export that waits to try again."""
        self._exporter.shutdown()

    def _span(self, record: RequestRecord, context: Context) -> ReadableSpan:
        attributes = _attributes(record)
        start = int(record.started_at * 1e9)
        # A client's mistake is no error of this service.
        failed = record.status >= 500 or (record.status < 400 and record.error is not None)
        model = f" {record.model}" if record.model is not None else ""
        return ReadableSpan(
            f"{attributes['gen_ai.operation.name']}{model}",
            _span_context(context, context.span, is_remote=False),
            None if context.parent is None else _span_context(context, context.parent, is_remote=True),
            self._resource,
            attributes,
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=start,
            end_time=start + int(record.e2e_s * 1e9),
            instrumentation_scope=_SCOPE,
        )


def _span_context(context: Context, span: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(context.trace, 16), int(span, 16), is_remote, TraceFlags(context.flags))


def _attributes(record: RequestRecord) -> dict[str, str | int | float | bool]:
    given: dict[str, str | int | float | bool | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.path) or record.path.rpartition("/")[2],
        "gen_ai.provider.name": "twinspeed",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "http.response.status_code": record.status,
        "error.type": record.error,
        "url.path": record.path,
        "twinspeed.request_id": record.request_id,
        "twinspeed.key_id": record.key_id,
        "twinspeed.variant": record.variant,
        "twinspeed.replica": record.replica,
        "twinspeed.reason": record.reason,
        "twinspeed.lane": record.lane,
        "twinspeed.tier": record.tier,
        "twinspeed.attempts": record.attempts,
        "twinspeed.client_left": record.client_left,
        "twinspeed.queue_s": record.queue_s,
        "twinspeed.cost_usd": record.cost / NANO,
    }
    if record.model is not None and record.variant is not None:
        given["gen_ai.response.model"] = f"{record.model}:{record.variant}"
    if record.usage is not None:
        given["gen_ai.usage.input_tokens"] = record.usage.prompt
        given["gen_ai.usage.output_tokens"] = record.usage.completion
        given["gen_ai.usage.cache_read.input_tokens"] = record.usage.cached
    return {name: value for name, value in given.items() if value is not None}
