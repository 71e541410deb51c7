"""Spans and errors as messages of OpenTelemetry's protocol. No other module imports that protocol.

It is imported with the first span or error. To build a message takes 20 microseconds. The tracer and exporter of
OpenTelemetry's SDK take three times as long (docs/decisions/0033).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import structlog
from django.conf import settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from kit.tracing import allowed
from kit.tracing.sending import Sender
from kit.tracing.spans import SPAN_BYTES, TRACE_BYTES, Attributes, Role, StepSpan, Trace

log = structlog.get_logger(__name__)

SCOPE = InstrumentationScope(name="pushserver")
FAILED = Status(code=Status.STATUS_CODE_ERROR)
SEVERITIES = {"ERROR": SeverityNumber.SEVERITY_NUMBER_ERROR, "CRITICAL": SeverityNumber.SEVERITY_NUMBER_FATAL}
Link: TypeAlias = Span.Link


class Spans:
    """The spans of this process."""

    def __init__(self) -> None:
        self._sender = Sender("spans", f"{settings.OTLP_URL}/v1/traces", settings.OTLP_HEADERS, _spans_of(_resource()))
        self.close, self.flush = self._sender.close, self._sender.flush

    def step(
        self,
        name: str,
        trace: Trace,
        began_ns: int,
        ended_ns: int,
        attributes: Attributes,
        *,
        role: Role = Role.INTERNAL,
        is_first: bool = False,
        is_error: bool = False,
        links: Sequence[Link] = (),
    ) -> None:
        """Send a span in the trace of a message, unless one of its attributes is not allowed."""
        allowed_attributes = _allowed_attributes(name, attributes)
        if allowed_attributes is None:
            return
        span = Span(
            trace_id=trace.id,
            span_id=trace.first_span_id if is_first else os.urandom(SPAN_BYTES),
            parent_span_id=b"" if is_first else trace.first_span_id,
            name=name,
            kind=Span.SpanKind.Value(f"SPAN_KIND_{role.name}"),
            start_time_unix_nano=began_ns,
            end_time_unix_nano=ended_ns,
            attributes=allowed_attributes,
            links=links,
            status=FAILED if is_error else None,
        )
        self._sender.add(span)

    def batch(self, began_ns: int, ended_ns: int, step_spans: Iterable[StepSpan]) -> None:
        """Send a batch with its steps. In the trace of each message, send a span for each step that worked on it."""
        trace_id, span_id = os.urandom(TRACE_BYTES), os.urandom(SPAN_BYTES)
        for step_span in step_spans:
            self._step_span(step_span, trace_id, span_id)
        batch = Span(trace_id=trace_id, span_id=span_id, name="batch", kind=Span.SPAN_KIND_INTERNAL)
        batch.start_time_unix_nano, batch.end_time_unix_nano = began_ns, ended_ns
        self._sender.add(batch)

    def _step_span(self, step_span: StepSpan, trace_id: bytes, batch_id: bytes) -> None:
        traces = dict.fromkeys(trace for trace, _ in step_span.noted)
        span = Span(
            trace_id=trace_id,
            span_id=os.urandom(SPAN_BYTES),
            parent_span_id=batch_id,
            name=step_span.name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=step_span.began_ns,
            end_time_unix_nano=step_span.ended_ns,
            links=[Link(trace_id=trace.id, span_id=trace.first_span_id) for trace in traces],
        )
        self._sender.add(span)
        back = [Link(trace_id=trace_id, span_id=span.span_id)]
        for trace, attributes in step_span.noted:
            self.step(step_span.name, trace, step_span.began_ns, step_span.ended_ns, attributes, links=back)


class Errors:
    """The errors that this process logs."""

    def __init__(self) -> None:
        self._sender = Sender("errors", f"{settings.OTLP_URL}/v1/logs", settings.OTLP_HEADERS, _logs_of(_resource()))
        self.close, self.flush = self._sender.close, self._sender.flush

    def export(
        self, event: str, attributes: Mapping[str, object], *, at_ns: int, severity: str, trace: Trace | None
    ) -> None:
        """Send an error, without the attributes that may not leave."""
        record = LogRecord(
            time_unix_nano=at_ns,
            observed_time_unix_nano=at_ns,
            severity_number=SEVERITIES.get(severity, SEVERITIES["ERROR"]),
            severity_text=severity,
            body=AnyValue(string_value=event),
            event_name=event,
            attributes=[_key_value(*item) for item in allowed.only_allowed(attributes).items()],
        )
        if trace:
            record.trace_id, record.span_id = trace
        self._sender.add(record)


def _allowed_attributes(name: str, attributes: Attributes) -> list[KeyValue] | None:
    """Return the attributes of a span for the collector, or None if one of them may not leave."""
    named = allowed.exported(attributes)
    refused = sorted(word for word, value in named.items() if not allowed.is_allowed(word, value))
    if refused:
        log.error("span_refused", span=name, attributes=refused)
        return None
    return [_key_value(word, value) for word, value in named.items()]


def _key_value(name: str, value: object) -> KeyValue:
    match value:
        case bool():
            return KeyValue(key=name, value=AnyValue(bool_value=value))
        case int():
            return KeyValue(key=name, value=AnyValue(int_value=value))
        case float():
            return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=str(value)))


def _resource() -> Resource:
    """Return the attributes of this server in every span and error: name, version, and those of OTLP_RESOURCE."""
    own = {"service.name": settings.OTLP_SERVICE, "service.version": settings.OTLP_VERSION}
    return Resource(attributes=[_key_value(*item) for item in (settings.OTLP_RESOURCE | own).items()])


def _spans_of(resource: Resource) -> Callable[[Sequence[Span]], bytes]:
    def encode(spans: Sequence[Span]) -> bytes:
        group = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(scope=SCOPE, spans=spans)])
        return ExportTraceServiceRequest(resource_spans=[group]).SerializeToString()

    return encode


def _logs_of(resource: Resource) -> Callable[[Sequence[LogRecord]], bytes]:
    def encode(records: Sequence[LogRecord]) -> bytes:
        group = ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=SCOPE, log_records=records)])
        return ExportLogsServiceRequest(resource_logs=[group]).SerializeToString()

    return encode
