"""Export of spans and errors: what may leave, as messages of OpenTelemetry's protocol, in batches from a thread.

Rules: only attributes with the names of `NAMES` and `LOCATIONS` leave, and only values that identify nobody. Device
tokens, access tokens, keys, hashes, topics, installations and JIDs have no name here, and are also refused as the value
of another attribute. No other thread waits for the collector: while it is unavailable, spans and errors are dropped.

No other module imports that protocol. OpenTelemetry's SDK is not used (docs/decisions/0144).
"""

import atexit
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from time import monotonic, sleep
from typing import Any, TypeAlias

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
from kit.telemetry import SPAN_BYTES, TRACE_BYTES, Attributes, Role, StepSpan, Times, Trace

log = structlog.get_logger(__name__)

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

TRACES_PATH, LOGS_PATH = "/v1/traces", "/v1/logs"
# Maximum number of waiting spans, and of errors. Beyond it the oldest is dropped.
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


class Exporter:
    """Sends the spans of this process, and the errors that it logs, of any of its threads."""

    def __init__(self) -> None:
        self._headers = {**settings.OTLP_HEADERS, "Content-Type": "application/x-protobuf"}
        self._warn_at = float("-inf")
        self._spans: deque[Span] = deque(maxlen=MAX_WAITING)
        self._errors: deque[LogRecord] = deque(maxlen=MAX_WAITING)
        self._sending = threading.Lock()
        self._client = new_client()
        self._thread = threading.Thread(target=self._run, name="exporter", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def step(
        self,
        name: str,
        trace: Trace,
        times: Times,
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
        first = trace.first_span_id
        ids = (trace.id, first, b"") if is_first else (trace.id, os.urandom(SPAN_BYTES), first)
        further = {"kind": role.value, "attributes": allowed, "links": links}
        self._spans.append(_span(name, ids, times, **further, status=FAILED if is_error else None))

    def batch(self, times: Times, step_spans: Iterable[StepSpan]) -> None:
        """Send a batch with its steps. In the trace of each message, send a span for each step that worked on it."""
        trace_id, batch_id = os.urandom(TRACE_BYTES), os.urandom(SPAN_BYTES)
        for each in step_spans:
            own_id = os.urandom(SPAN_BYTES)
            traces = dict.fromkeys(trace for trace, _ in each.noted)
            links = [Link(trace_id=trace.id, span_id=trace.first_span_id) for trace in traces]
            self._spans.append(_span(each.name, (trace_id, own_id, batch_id), each.times, links=links))
            back = [Link(trace_id=trace_id, span_id=own_id)]
            for trace, attributes in each.noted:
                self.step(each.name, trace, each.times, attributes, links=back)
        self._spans.append(_span("batch", (trace_id, batch_id, b""), times))

    def error(self, event: str, attributes: Attributes, *, at_ns: int, severity: str, trace: Trace | None) -> None:
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
        self._errors.append(record)

    def _run(self) -> None:
        while True:
            sleep(EVERY_SECONDS)
            self.flush()

    def flush(self, seconds: float = threading.TIMEOUT_MAX) -> None:
        """Send all that waits, for up to ``seconds``."""
        until = monotonic() + seconds
        if self._sending.acquire(timeout=seconds):
            while (waiting := self._errors or self._spans) and monotonic() < until:  # errors do not wait for spans
                self._send(waiting, max(min(until - monotonic(), EXPORT_SECONDS), 0.1))
            self._sending.release()

    def close(self) -> None:
        """Send what waits for up to `LAST_SECONDS`. A forked process leaves its parent's to the parent."""
        if self._thread.is_alive():
            self.flush(LAST_SECONDS)

    def _send(self, waiting: deque[Any], seconds: float) -> None:
        """Send one batch, and drop it if the collector does not accept it."""
        path = LOGS_PATH if waiting is self._errors else TRACES_PATH
        batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_IN_A_BATCH))]
        url, body = f"{settings.OTLP_URL}{path}", _encoded(batch, path)
        asking = submit(ask(self._client, "POST", url, seconds=seconds, content=body, headers=self._headers))
        try:
            status = asking.result(seconds).status_code
            if status >= HTTPStatus.MULTIPLE_CHOICES:
                self._warn(path, status, len(batch))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            asking.cancel()
            self._warn(path, type(error).__name__, len(batch))

    def _warn(self, path: str, error: str | int, count: int) -> None:
        if monotonic() >= self._warn_at:
            self._warn_at = monotonic() + WARN_EVERY_SECONDS
            log.warning("collector_takes_nothing", path=path, error=error, count=count)


def _span(name: str, ids: tuple[bytes, bytes, bytes], times: Times, **further: Any) -> Span:
    """Return a span. ``ids`` are those of its trace, its own, and its parent's."""
    trace_id, span_id, parent_id = ids
    return Span(
        name=name,
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent_id,
        start_time_unix_nano=times[0],
        end_time_unix_nano=times[1],
        **{"kind": Span.SPAN_KIND_INTERNAL, **further},
    )


def _key_value(name: str, value: object) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(**{KINDS[type(value)]: value}))  # type: ignore[arg-type]


def _encoded(batch: Sequence[Any], path: str) -> bytes:
    """Return a batch as a request, with name and version of this server, and the attributes of OTLP_RESOURCE."""
    own = {"service.name": settings.OTLP_SERVICE, "service.version": settings.OTLP_VERSION}
    resource = Resource(attributes=[_key_value(*item) for item in (settings.OTLP_RESOURCE | own).items()])
    if path == TRACES_PATH:
        spans = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(scope=SCOPE, spans=batch)])
        return ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString()
    logs = ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=SCOPE, log_records=batch)])
    return ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString()
