"""Export of spans and errors: what may leave, as messages of OpenTelemetry's protocol, in batches from a thread.

Rules: only attributes with the names of `NAMES` and `LOCATIONS` leave, and only values that identify nobody. Device
tokens, access tokens, keys, hashes, topics, installations and JIDs have no name here, and are also refused as the value
of another attribute. No other thread waits for the collector: while it is unavailable, spans and errors are dropped.

No other module imports that protocol. To build a message takes 20 microseconds. The tracer and exporter of
OpenTelemetry's SDK take three times as long (docs/decisions/0033).
"""

import atexit
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from time import monotonic, sleep
from typing import Generic, TypeAlias, TypeVar

import httpx
import structlog
from django.conf import settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from kit.http import ask, new_client, submit
from kit.tracing import SPAN_BYTES, TRACE_BYTES, Attributes, Role, StepSpan, Trace

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Our name of an attribute, and its name in the collector: that of the semantic conventions, where there is one.
NAMES: Mapping[str, str] = {
    "attempt": "pushserver.attempt",
    "code": "pushserver.code",
    "count": "pushserver.count",
    "bridge": "pushserver.bridge",
    "gateway": "pushserver.gateway",
    "message_type": "pushserver.message_type",
    "node": "server.address",
    "outcome": "pushserver.outcome",
    "path": "pushserver.path",
    "queue": "pushserver.queue",
    "reason": "pushserver.reason",
    "step": "pushserver.step",
    "wait_ms": "pushserver.wait_ms",
}
# Places in the code. We make their values, from names of files and functions.
LOCATIONS: Mapping[str, str] = {
    "error": "error.type",
    "exception": "exception.type",
    "function": "code.function.name",
    "line": "code.line.number",
    "logger": "pushserver.logger",
    "location": "pushserver.location",
    "stack": "exception.stacktrace",
}
EXPORTED = frozenset({*NAMES.values(), *LOCATIONS.values()})
# Field of OpenTelemetry's `AnyValue` for each type of value that may leave.
KINDS: Mapping[type, str] = {str: "string_value", int: "int_value", float: "double_value", bool: "bool_value"}

_WORD = re.compile(r"[A-Za-z0-9_.:\[\] -]{0,64}")
_PLACE = re.compile(r"[A-Za-z0-9_.:<>/, \n-]{0,4000}")
# Keys, hashes, tokens and UUIDs have such sequences of characters. Words and host names do not. Names in the code may
# be longer than 24 letters, but do not consist of hex digits.
_DIGITS = re.compile(r"[0-9A-Fa-f]{16}")
_SECRET = re.compile(r"[0-9A-Fa-f]{16}|[A-Za-z0-9]{24}")

SCOPE = InstrumentationScope(name="pushserver")
FAILED = Status(code=Status.STATUS_CODE_ERROR)
SEVERITIES = {"ERROR": SeverityNumber.SEVERITY_NUMBER_ERROR, "CRITICAL": SeverityNumber.SEVERITY_NUMBER_FATAL}
Link: TypeAlias = Span.Link

# Maximum number of waiting items. Beyond it the oldest is dropped.
MAX_WAITING = 4096
MAX_IN_A_BATCH = 512
EXPORT_SECONDS = 5.0
EVERY_SECONDS = 2.0
# Seconds that a process may take at its end for its last batches.
LAST_SECONDS = 2.0
# Seconds between two warnings about an unreachable collector.
WARN_EVERY_SECONDS = 60.0


def is_allowed(name: str, value: object) -> bool:
    """Return whether an attribute may leave. ``name`` is its name in the collector."""
    if name not in EXPORTED or type(value) not in KINDS:
        return False
    if not isinstance(value, str):
        return True
    shape, secret = (_PLACE, _DIGITS) if name in LOCATIONS.values() else (_WORD, _SECRET)
    return bool(shape.fullmatch(value)) and not secret.search(value.replace("-", ""))


def sorted_out(attributes: Mapping[str, object]) -> tuple[list[KeyValue], list[str]]:
    """Return the attributes that may leave, as the collector names them, and the names of those that may not."""
    named = {NAMES.get(word) or LOCATIONS.get(word) or word: value for word, value in attributes.items()}
    allowed = [_key_value(name, value) for name, value in named.items() if is_allowed(name, value)]
    return allowed, sorted(name for name, value in named.items() if not is_allowed(name, value))


class Sender(Generic[T]):
    """Sends items, spans or errors, of any thread of this process."""

    def __init__(self, kind: str, path: str, encode: Callable[[Sequence[T]], bytes]) -> None:
        self._kind = kind
        self._url = f"{settings.OTLP_URL}{path}"
        self._headers = {**settings.OTLP_HEADERS, "Content-Type": "application/x-protobuf"}
        self._encode = encode
        self._warn_at = float("-inf")
        self._waiting: deque[T] = deque(maxlen=MAX_WAITING)
        self._sending = threading.Lock()
        self._client = new_client()
        self._thread = threading.Thread(target=self._run, name=f"sender of {kind}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, item: T) -> None:
        """Queue an item, which is sent within `EVERY_SECONDS`."""
        self._waiting.append(item)

    def _run(self) -> None:
        while True:
            sleep(EVERY_SECONDS)
            self.flush()

    def flush(self) -> None:
        """Send all waiting items, without a time limit."""
        with self._sending:
            while self._waiting:
                self._send(EXPORT_SECONDS)

    def close(self) -> None:
        """Send waiting items for up to `LAST_SECONDS`. A forked process leaves its parent's items to the parent."""
        until = monotonic() + LAST_SECONDS
        if self._thread.is_alive() and self._sending.acquire(timeout=LAST_SECONDS):
            while self._waiting and monotonic() < until:
                self._send(max(until - monotonic(), 0.1))
            self._sending.release()

    def _send(self, seconds: float) -> None:
        """Send one batch, and drop it if the collector does not accept it."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_IN_A_BATCH))]
        body = self._encode(batch)
        asking = submit(ask(self._client, "POST", self._url, seconds=seconds, content=body, headers=self._headers))
        try:
            status = asking.result(seconds).status_code
            if status >= HTTPStatus.MULTIPLE_CHOICES:
                self._warn(status, len(batch))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            asking.cancel()
            self._warn(type(error).__name__, len(batch))

    def _warn(self, error: str | int, count: int) -> None:
        if monotonic() >= self._warn_at:
            self._warn_at = monotonic() + WARN_EVERY_SECONDS
            log.warning("collector_takes_nothing", kind=self._kind, error=error, count=count)


class Spans(Sender[Span]):
    """The spans of this process."""

    def __init__(self) -> None:
        super().__init__("spans", "/v1/traces", _encoded_spans)

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
        allowed, refused = sorted_out(attributes)
        if refused:
            log.error("span_refused", span=name, attributes=refused)
            return
        span = Span(
            trace_id=trace.id,
            span_id=trace.first_span_id if is_first else os.urandom(SPAN_BYTES),
            parent_span_id=b"" if is_first else trace.first_span_id,
            name=name,
            kind=Span.SpanKind.Value(f"SPAN_KIND_{role.name}"),
            start_time_unix_nano=began_ns,
            end_time_unix_nano=ended_ns,
            attributes=allowed,
            links=links,
            status=FAILED if is_error else None,
        )
        self.add(span)

    def batch(self, began_ns: int, ended_ns: int, step_spans: Iterable[StepSpan]) -> None:
        """Send a batch with its steps. In the trace of each message, send a span for each step that worked on it."""
        trace_id, span_id = os.urandom(TRACE_BYTES), os.urandom(SPAN_BYTES)
        for step_span in step_spans:
            self._step_of_batch(step_span, trace_id, span_id)
        self.add(_internal("batch", trace_id, span_id, b"", began_ns, ended_ns))

    def _step_of_batch(self, step_span: StepSpan, trace_id: bytes, batch_id: bytes) -> None:
        began_ns, ended_ns, own_id = step_span.began_ns, step_span.ended_ns, os.urandom(SPAN_BYTES)
        span = _internal(step_span.name, trace_id, own_id, batch_id, began_ns, ended_ns)
        traces = dict.fromkeys(trace for trace, _ in step_span.noted)
        span.links.extend(Link(trace_id=trace.id, span_id=trace.first_span_id) for trace in traces)
        self.add(span)
        back = [Link(trace_id=trace_id, span_id=own_id)]
        for trace, attributes in step_span.noted:
            self.step(step_span.name, trace, began_ns, ended_ns, attributes, links=back)


class Errors(Sender[LogRecord]):
    """The errors that this process logs."""

    def __init__(self) -> None:
        super().__init__("errors", "/v1/logs", _encoded_errors)

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
            attributes=sorted_out(attributes)[0],
        )
        if trace:
            record.trace_id, record.span_id = trace
        self.add(record)


def _internal(name: str, trace_id: bytes, span_id: bytes, parent_id: bytes, began_ns: int, ended_ns: int) -> Span:
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_id,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=began_ns,
        end_time_unix_nano=ended_ns,
    )


def _key_value(name: str, value: object) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(**{KINDS[type(value)]: value}))  # type: ignore[arg-type]


def _resource() -> Resource:
    """Return the attributes of this server in every span and error: name, version, and those of OTLP_RESOURCE."""
    own = {"service.name": settings.OTLP_SERVICE, "service.version": settings.OTLP_VERSION}
    return Resource(attributes=[_key_value(*item) for item in (settings.OTLP_RESOURCE | own).items()])


def _encoded_spans(spans: Sequence[Span]) -> bytes:
    group = ResourceSpans(resource=_resource(), scope_spans=[ScopeSpans(scope=SCOPE, spans=spans)])
    return ExportTraceServiceRequest(resource_spans=[group]).SerializeToString()


def _encoded_errors(records: Sequence[LogRecord]) -> bytes:
    group = ResourceLogs(resource=_resource(), scope_logs=[ScopeLogs(scope=SCOPE, log_records=records)])
    return ExportLogsServiceRequest(resource_logs=[group]).SerializeToString()
