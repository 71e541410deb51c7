"""Spans and errors on their way out, in the words of OpenTelemetry: the only module that imports it.

It is imported with the first span or error. Batches go out on a thread of the SDK; when the collector is away, they are
dropped, and nobody waits for it.
"""

import atexit
import threading
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

import structlog
from django.conf import settings
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from kit.tracing import allowed
from kit.tracing.steps import Attributes, Role, Stage
from kit.tracing.traces import Trace

log = structlog.get_logger(__name__)

# How long one batch may take, tries and all, and how long a process that ends waits for its last ones.
EXPORT_SECONDS = 5.0
LAST_SECONDS = 2.0
# A collector that is away is told of so often.
COMPLAIN_EVERY_SECONDS = 60.0
SCOPE = "pushserver"
ROLES = {Role.INTERNAL: SpanKind.INTERNAL, Role.CLIENT: SpanKind.CLIENT, Role.CONSUMER: SpanKind.CONSUMER}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Ids(RandomIdGenerator):
    """Gives the first span of a message's trace the ids that every process knows, and random ones to all others."""

    def __init__(self) -> None:
        self._given = threading.local()

    def give(self, trace: Trace) -> None:
        """Let the next span of this thread be the first one of its trace."""
        self._given.trace = trace

    def generate_trace_id(self) -> int:
        trace: Trace | None = getattr(self._given, "trace", None)
        return trace.id if trace else super().generate_trace_id()

    def generate_span_id(self) -> int:
        trace: Trace | None = self._given.__dict__.pop("trace", None)
        return trace.first_span_id if trace else super().generate_span_id()


class Complaints:
    """Says that the collector takes nothing, now and then."""

    def __init__(self) -> None:
        self._next_at = float("-inf")

    def note(self, what: str, count: int) -> None:
        """Log that so many spans or errors were lost, unless that was said a moment ago."""
        if monotonic() >= self._next_at:
            self._next_at = monotonic() + COMPLAIN_EVERY_SECONDS
            log.warning("collector_takes_nothing", what=what, count=count)


class Gate(SpanExporter):
    """Lets spans out to another exporter, but none with an attribute that `allowed` does not know."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._complaints = Complaints()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export([span for span in spans if _may_leave(span)])
        if result is SpanExportResult.FAILURE:
            self._complaints.note("spans", len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _may_leave(span: ReadableSpan) -> bool:
    found = [
        *(span.attributes or {}).items(),
        *(item for link in span.links for item in (link.attributes or {}).items()),
    ]
    refused = sorted(name for name, value in found if not allowed.is_allowed(name, value))
    if refused or span.events or span.status.description:
        log.error("span_refused", span=span.name, attributes=refused)
        return False
    return True


class Spans:
    """The spans of this process."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._ids = Ids()
        self._processor = BatchSpanProcessor(Gate(exporter))
        provider = TracerProvider(ALWAYS_ON, _resource(), shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer(SCOPE)
        atexit.register(self.close)

    def step(
        self,
        name: str,
        trace: Trace,
        began_ns: int,
        ended_ns: int,
        attributes: Attributes,
        *,
        role: Role,
        is_first: bool,
        is_error: bool,
        links: Sequence[Link] = (),
    ) -> None:
        """Tell a span in the trace of a message."""
        if is_first:
            self._ids.give(trace)
        context = Context() if is_first else _within(trace)
        told = allowed.exported(attributes)
        span = self._tracer.start_span(name, context, ROLES[role], told, links, began_ns)  # type: ignore[arg-type]
        if is_error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def turn(self, began_ns: int, ended_ns: int, stages: Iterable[Stage]) -> None:
        """Tell a turn with its stages, and in the trace of each message what a stage did for it."""
        turn = self._tracer.start_span("turn", Context(), start_time=began_ns)
        within = set_span_in_context(turn, Context())
        for stage in stages:
            self._stage(stage, within)
        turn.end(ended_ns)

    def _stage(self, stage: Stage, within: Context) -> None:
        links = [Link(_context_of(trace)) for trace in dict.fromkeys(trace for trace, _ in stage.noted)]
        span = self._tracer.start_span(stage.name, within, links=links, start_time=stage.began_ns)
        span.end(stage.ended_ns)
        back = [Link(span.get_span_context())]
        for trace, attributes in stage.noted:
            self.step(
                stage.name,
                trace,
                stage.began_ns,
                stage.ended_ns,
                attributes,
                role=Role.INTERNAL,
                is_first=False,
                is_error=False,
                links=back,
            )

    def flush(self) -> None:
        """Send what has been told so far, however long that takes."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send what is left, for a short while."""
        _close(self._processor)


def _within(trace: Trace) -> Context:
    return set_span_in_context(NonRecordingSpan(_context_of(trace)), Context())


def _context_of(trace: Trace) -> SpanContext:
    return SpanContext(trace.id, trace.first_span_id, is_remote=True, trace_flags=SAMPLED)


class Errors:
    """The errors that this process logs."""

    def __init__(self) -> None:
        self._processor = BatchLogRecordProcessor(_LogExporter())
        provider = LoggerProvider(_resource(), shutdown_on_exit=False)
        provider.add_log_record_processor(self._processor)
        self._logger = provider.get_logger(SCOPE)
        atexit.register(self.close)

    def tell(
        self, event: str, attributes: Mapping[str, object], *, at_ns: int, severity: str, trace: Trace | None
    ) -> None:
        """Tell an error. What of its attributes may not leave stays here."""
        record = LogRecord(
            timestamp=at_ns,
            observed_timestamp=at_ns,
            context=_within(trace) if trace else Context(),
            severity_text=severity,
            severity_number=SeverityNumber.FATAL if severity == "CRITICAL" else SeverityNumber.ERROR,
            body=event,
            attributes=allowed.only_allowed(attributes),
            event_name=event,
        )
        self._logger.emit(record)

    def close(self) -> None:
        """Send what is left, for a short while."""
        _close(self._processor)


class _LogExporter(OTLPLogExporter):
    """The exporter of the SDK, which says now and then that the collector takes nothing."""

    def __init__(self) -> None:
        super().__init__(_url("logs"), headers=settings.OTLP_HEADERS, timeout=EXPORT_SECONDS)
        self._complaints = Complaints()

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = super().export(batch)
        if result is LogRecordExportResult.FAILURE:
            self._complaints.note("errors", len(batch))
        return result


def new_spans() -> Spans:
    """Return spans that go to the collector of the settings."""
    return Spans(OTLPSpanExporter(_url("traces"), headers=settings.OTLP_HEADERS, timeout=EXPORT_SECONDS))


def _url(what: str) -> str:
    return f"{settings.OTLP_URL}/v1/{what}"


def _resource() -> Resource:
    """Return what every span and error says of this server: its name and version, and OTEL_RESOURCE_ATTRIBUTES."""
    return Resource.create({"service.name": settings.OTLP_SERVICE, "service.version": settings.OTLP_VERSION})


def _close(processor: BatchSpanProcessor | BatchLogRecordProcessor) -> None:
    """Send what is left. The SDK would wait half a minute for a collector that hangs, and gives no way to say how long
    but this one.
    """
    processor._batch_processor.shutdown(timeout_millis=int(LAST_SECONDS * 1000))  # noqa: SLF001 - see above
