"""Traces with OpenTelemetry, if OTEL_EXPORTER_OTLP_ENDPOINT is set. Otherwise its SDK is not imported, and `span`
returns an object that does nothing.

    request ─▶ submit ─▶ (job row) ─▶ step of an orchestrator ─▶ (task row) ─▶ attempt of a task
                            └───────▶ callback

The context of a trace travels as a `traceparent` (W3C): in HTTP headers, in the row of a job, and in the rows of its
tasks. A trace that is not sampled has none, so that later processes do nothing for it.

Spans are exported by a thread, in batches. Its queue has a limit: if the collector is slow or down, spans are dropped,
and no request waits for it. Attributes are names and ids, never params, bodies, URLs with a query, or texts of errors.
"""

import logging
import re
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from dagmaster.observe import log
from dagmaster.observe.redaction import redact_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span as OtelSpan

HEADER: Final = "traceparent"
QUEUE_SPANS: Final = 4096
EXPORT_SECONDS: Final = 5.0  # for one attempt to reach the collector
DELAY_SECONDS: Final = 1.0  # between exports
SHUTDOWN_SECONDS: Final = 2.0  # for the last spans, when a process ends
_MAX_VALUE_LENGTH: Final = 200
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CHILD_INDEX = re.compile(r"__(\d+)$")
_log = log.get("traces")

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float | bool | None]


class Span(Protocol):
    """One operation. Use it as a context manager; `end` is for spans that are not."""

    @property
    def traceparent(self) -> str | None:
        """The value that other processes need to continue the trace; None if it is not recorded."""
        ...

    def set(self, **attributes: str | int | float | bool | None) -> None: ...

    def fail(self, code: str, /) -> None:
        """Mark it as failed. `code` is a stable code, not a message."""
        ...

    def end(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NoSpan:
    """The span if traces are off, or if this operation is not traced."""

    __slots__ = ()
    traceparent: None = None

    def set(self, **_attributes: Any) -> None:
        return

    def fail(self, _code: str) -> None:
        return

    def end(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


NO_SPAN: Final = _NoSpan()
_current: ContextVar["_RecordedSpan | None"] = ContextVar("span", default=None)
_tracing: "_Tracing | None" = None


def is_on() -> bool:
    return _tracing is not None


def span(
    name: str,
    *,
    parent: str | None = None,
    kind: Kind = "internal",
    begun_at: float | None = None,
    needs_parent: bool = False,
    **attributes: str | int | float | bool | None,
) -> Span:
    """A new span: a child of `parent`, else of the current one, else the root of a new trace. With `needs_parent` there
    is no span without a parent. `begun_at` is the Unix time of its beginning, if that was earlier."""
    tracing = _tracing
    if tracing is None:
        return NO_SPAN
    enclosing = _current.get()
    parent = parent or (enclosing.traceparent if enclosing is not None else None)
    if parent is None and (needs_parent or enclosing is not None):
        return NO_SPAN
    return tracing.span(name, parent, kind, begun_at, attributes)


def current_traceparent() -> str | None:
    enclosing = _current.get()
    return None if enclosing is None else enclosing.traceparent


def headers() -> dict[str, str]:
    """The headers that a request to another process needs to continue the trace."""
    traceparent = current_traceparent()
    return {} if traceparent is None else {HEADER: traceparent}


def valid_traceparent(value: str | None) -> str | None:
    """The `traceparent` of a request, if it is well-formed. Any other value is ignored, as the standard requires."""
    return value if value is not None and _TRACEPARENT.fullmatch(value) else None


def is_node_traced(node_id: str, limit: int) -> bool:
    """Whether tasks of this node are traced: of the children of a fan_out, only the first `limit` are."""
    match = _CHILD_INDEX.search(node_id)
    return match is None or int(match[1]) < limit


def ids_of(traceparent: str | None) -> dict[str, str]:
    """The ids of a trace and its span, for log lines."""
    if traceparent is None:
        return {}
    _, trace_id, span_id, _ = traceparent.split("-")
    return {"trace_id": trace_id, "span_id": span_id}


def configure(role: str, endpoint: str | None, *, headers: str | None = None, ratio: float = 1.0) -> None:
    """Export the spans of this process to a collector. `headers` are pairs NAME=VALUE, separated by commas."""
    global _tracing  # noqa: PLW0603 - configured once for the process, like logging
    shutdown()
    if endpoint is not None:
        _tracing = _Tracing(role, endpoint, headers, ratio)
        log.add_context(lambda: ids_of(current_traceparent()))


def shutdown() -> None:
    """Export the remaining spans for a moment. If the collector is down, they are lost, and the process ends anyway."""
    global _tracing
    tracing, _tracing = _tracing, None
    if tracing is not None:
        tracing.close()


class _Tracing:
    def __init__(self, role: str, endpoint: str, headers: str | None, ratio: float) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        from dagmaster import __version__

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the exporter below reports failures, once
        resource = Resource({"service.name": f"dagmaster-{role}", "service.version": __version__})
        self._provider: TracerProvider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _exporter(endpoint, headers),
                max_queue_size=QUEUE_SPANS,
                schedule_delay_millis=DELAY_SECONDS * 1000,
                max_export_batch_size=512,
            )
        )
        self._tracer = self._provider.get_tracer("dagmaster", __version__)

    def span(
        self, name: str, parent: str | None, kind: Kind, begun_at: float | None, attributes: Attributes
    ) -> "_RecordedSpan":
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            name,
            context=_context(valid_traceparent(parent)),
            kind=SpanKind[kind.upper()],
            attributes=_clean(attributes),
            start_time=None if begun_at is None else int(begun_at * 1e9),
            record_exception=False,
            set_status_on_exception=False,
        )
        return _RecordedSpan(span)

    def close(self) -> None:
        thread = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_SECONDS)


class _RecordedSpan:
    __slots__ = ("_span", "_token", "traceparent")

    def __init__(self, span: "OtelSpan") -> None:
        self._span = span
        self._token: Any = None
        context = span.get_span_context()
        is_recorded = span.is_recording()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if is_recorded else None

    def set(self, **attributes: str | int | float | bool | None) -> None:
        self._span.set_attributes(_clean(attributes))

    def fail(self, code: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attributes(_clean({"error.type": code}))
        self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        self._span.end()

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _current.reset(self._token)
        if kind is not None and issubclass(kind, Exception):
            self.fail(str(getattr(error, "code", None) or kind.__qualname__))
        self._span.end()


def _context(parent: str | None) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if parent is None:
        return Context()
    _, trace_id, span_id, flags = parent.split("-")
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(context), Context())


def _clean(attributes: Attributes) -> dict[str, Any]:
    """The attributes without secrets and without long texts."""
    cleaned = ((name, redact_named(name, value)) for name, value in attributes.items() if value is not None)
    return {name: value[:_MAX_VALUE_LENGTH] if isinstance(value, str) else value for name, value in cleaned}


def _exporter(endpoint: str, headers: str | None) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class QuietExporter(SpanExporter):
        """Reports in the log when the collector becomes unavailable, and when it is available again."""

        def __init__(self) -> None:
            pairs = (pair.partition("=") for pair in (headers or "").split(",") if pair.strip())
            self._exporter = OTLPSpanExporter(
                endpoint=f"{endpoint.rstrip('/')}/v1/traces",
                headers={name.strip(): value.strip() for name, _, value in pairs},
                timeout=EXPORT_SECONDS,
            )
            self._failed_at: float | None = None
            self._lost = 0

        def export(self, spans: "Sequence[ReadableSpan]") -> SpanExportResult:
            try:
                result = self._exporter.export(spans)
            except Exception:  # a failure of the collector must not affect the process
                result = SpanExportResult.FAILURE
            self._note(result is SpanExportResult.SUCCESS, len(spans))
            return result

        def _note(self, is_exported: bool, count: int) -> None:
            if is_exported and self._failed_at is not None:
                seconds = round(time.monotonic() - self._failed_at, 1)
                _log.info("spans are exported again", lost=self._lost, seconds=seconds)
                self._failed_at, self._lost = None, 0
            elif not is_exported:
                self._lost += count
                if self._failed_at is None:
                    self._failed_at = time.monotonic()
                    _log.warning("spans cannot be exported; they are dropped", collector=endpoint)

        def shutdown(self) -> None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    return QuietExporter()
