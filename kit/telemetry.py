"""What a process tells about its work: metrics, traces of messages, and error reports.

Metrics are counted in batches: one addition per metric and set of labels, made after the commit of the batch. Each app
defines its metrics in its own `metrics.py`. Every process counts in files of its own, so counting needs no lock and no
other server. `kit.exposition` adds them up.

Traces and error reports go to a collector that speaks OTLP over HTTP, where the settings name one.

See docs/monitoring/README.md.
"""

import logging
import sys
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

import structlog
from django.conf import settings
from django.db import connection, transaction
from prometheus_client import Counter as Metric
from prometheus_client import Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

from kit.db.base import Written
from kit.processes import once

if TYPE_CHECKING:
    from kit.otlp import Exporter

log = structlog.get_logger(__name__)
Labels = tuple[str, ...]


class BatchHistogram(Histogram):
    """A histogram with one write per bucket for all values of a batch, where `observe` makes two writes per value."""

    def observe_all(self, values: Iterable[float]) -> None:
        """Add all values."""
        counts: Counter[int] = Counter()
        total = 0.0
        for value in values:
            counts[bisect_left(self._upper_bounds, value)] += 1
            total += value
        for position, count in counts.items():
            self._buckets[position].inc(count)
        if counts:
            self._sum.inc(total)


@dataclass(frozen=True, slots=True)
class AskedGauge:
    """A gauge whose value is not counted, but read from a server when metrics are collected."""

    name: str
    documentation: str
    labelnames: tuple[str, ...] = ()

    def family(self, rows: Iterable[Sequence[object]]) -> GaugeMetricFamily:
        """Return the values as a Prometheus family. A row of ``rows`` has the labels in their order, and the value.

        Rows with the value None are left out.
        """
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labelnames)
        for *labels, value in rows:
            if value is not None:
                family.add_metric([str(label) for label in labels], float(str(value)))
        return family


@dataclass(frozen=True, slots=True)
class StoredGauge(AskedGauge):
    """A gauge whose value a query reads. ``sql`` must be fast for tables of any size, by a partial index or a limit."""

    sql: str = field(kw_only=True)


def count(metric: Metric, facts: Iterable[Labels] | Mapping[Labels, int]) -> None:
    """Add the facts of a batch to a counter after the commit, with one addition per set of labels.

    ``facts`` are the labels of each fact, or the number of facts by labels. Errors of counting never reach the caller.
    """
    counts = Counter(facts)
    if counts:
        _once_committed(lambda: _add(metric, counts))


def count_returned(metric: Metric, written: Written) -> None:
    """Add the facts whose labels a statement returns. See `count`."""
    _once_committed(lambda: _add(metric, Counter(written.rows())))


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str) -> None:
    """Add the values of a batch to a histogram after the commit."""
    if kept := list(values):
        _once_committed(lambda: (histogram.labels(*labels) if labels else histogram).observe_all(kept))


def _once_committed(add: Callable[[], None]) -> None:
    """Call ``add`` after the commit, or at once outside of a transaction.

    The latter needs no connection, so that failures of the database can be counted.
    """
    if connection.in_atomic_block:
        transaction.on_commit(add, robust=True)
        return
    try:
        add()
    except Exception as error:  # noqa: BLE001 - counting must not fail work that is done
        log.error("not_counted", error=type(error).__name__)  # noqa: TRY400 - its text may quote a label


def _add(metric: Metric, counts: Mapping[Labels, int]) -> None:
    for labels, number in counts.items():
        (metric.labels(*labels) if labels else metric).inc(number)


# Traces ---------------------------------------------------------------------------------------------------------------
#
#     key of a message ──keyed digest──▶ id of its trace, and whether it is traced: the same in every process
#                                              │
#     work of a process for a message ─────────┴──▶ span ──▶ only what may leave (`kit.otlp`) ──▶ collector
#
# So a trace needs no storage, and processes need not pass its id to each other. A span is of a step of its own, or of a
# part of a step of a batch:
#
#     batch ──┬── step ──links──▶ the messages that it worked on
#             ├── step                     each has a span for the step in its own trace,
#             └── ...                      which links back to the step
#
# A batch is sent after its commit, and only if it worked on a traced message. Errors of tracing never reach the caller.
# While tracing is off it costs nothing: the protocol of OpenTelemetry is imported with the first span or error.

TRACE_BYTES, SPAN_BYTES = 16, 8
# The handler skips errors of the exporting code, which would cause new ones. (Those of tracing are warnings.)
OWN = "kit.otlp"
# Number of calls of a stack that are sent: the innermost ones.
MAX_CALLS = 20
LIBRARY_ERROR = "library_error"
NS_PER_SECOND = 10**9
Attributes = Mapping[str, object]
Times = tuple[int, int]  # beginning and end, in nanoseconds since 1970
P = ParamSpec("P")


class Trace(NamedTuple):
    """The trace of one message: its id, and the id of its first span."""

    id: bytes
    first_span_id: bytes


def is_on() -> bool:
    """Return whether any message is traced."""
    return bool(settings.TRACES)


def trace_of(key: bytes) -> Trace | None:
    """Return the trace of the message with this key, or None for an untraced message.

    The ids are a digest with a secret key of this server. So nobody can tell from a trace which message it belongs to,
    or make all own messages traced. Part of the id decides whether a message is traced, as in `TraceIdRatioBased`.
    """
    if not settings.TRACES:
        return None
    digest = blake2b(key, digest_size=TRACE_BYTES + SPAN_BYTES, key=settings.TRACES_KEY).digest()
    if int.from_bytes(digest[SPAN_BYTES:TRACE_BYTES]) >= settings.TRACES_SHARE * 2.0**64:
        return None
    return Trace(digest[:TRACE_BYTES], digest[TRACE_BYTES:])


class Role(Enum):
    """The kind of a span, by its name and number in OpenTelemetry."""

    INTERNAL = 1
    CLIENT = 3  # a request to another server, with the wait for its answer
    CONSUMER = 5  # the receipt of a message


@dataclass(slots=True)
class StepSpan:
    """One step of a batch, and the traces of its messages with attributes."""

    name: str
    times: Times
    noted: list[tuple[Trace, Attributes]] = field(default_factory=list)


_at_work: ContextVar[StepSpan | None] = ContextVar("step at work", default=None)


def _harmless(function: Callable[P, None]) -> Callable[P, None]:
    """Return a decorated function that logs its errors instead of raising them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - an error of tracing must not stop a message
            log.warning("not_traced", error=type(error).__name__)

    return call


class BatchTrace:
    """The tracing of a batch. A batch that is rolled back needs no further call."""

    def __init__(self) -> None:
        self._began_ns = time_ns()
        self._step_spans: list[StepSpan] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Trace the work of a step, which is the body of the `with` statement."""
        if not is_on():
            yield
            return
        step_span = StepSpan(name, (time_ns(), 0))
        self._step_spans.append(step_span)
        before = _at_work.set(step_span)
        try:
            yield
        finally:
            _at_work.reset(before)
            step_span.times = (step_span.times[0], time_ns())

    @_harmless
    def committed(self) -> None:
        """Send the spans of the batch. Call it after the commit."""
        if any(step_span.noted for step_span in self._step_spans):
            exporter().batch((self._began_ns, time_ns()), self._step_spans)


@_harmless
def note(facts: Iterable[tuple[bytes, Attributes]]) -> None:
    """Record the messages that the current step has worked on, by their keys, with attributes from `kit.otlp.NAMES`.

    Outside of a traced step, and while tracing is off, ``facts`` is not iterated.
    """
    if step_span := _at_work.get():
        step_span.noted += [(trace, attributes) for key, attributes in facts if (trace := trace_of(key))]


@_harmless
def step(
    name: str,
    key: bytes,
    attributes: Attributes,
    *,
    began_ns: int,
    role: Role = Role.INTERNAL,
    is_first: bool = False,
    is_error: bool = False,
) -> None:
    """Send a span for a step that has just ended, in the trace of the message with this key.

    ``is_first`` marks the step with which the trace begins.
    """
    if trace := trace_of(key):
        times = (began_ns, time_ns())
        exporter().step(name, trace, times, attributes, role=role, is_first=is_first, is_error=is_error)


class ErrorHandler(logging.Handler):
    """Sends logged errors to the collector of the settings. It never raises, and never waits for the collector.

    Records arrive here after the redaction of the log. Only constant words and places in the code leave. The text of a
    library's error may quote data, so only the logger, the place and the type of that error are sent.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(OWN):
            return
        try:
            event = record.msg if isinstance(record.msg, dict) else {}
            attributes = dict(_attributes(record, event))
            name = str(event.get("event", LIBRARY_ERROR))
            at_ns = int(record.created * NS_PER_SECOND)
            exporter().error(name, attributes, at_ns=at_ns, severity=record.levelname, trace=_trace_of(event))
        except Exception:  # noqa: BLE001 - as handlers do
            self.handleError(record)


def _attributes(record: logging.LogRecord, event: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    yield from event.items()
    yield "logger", record.name
    yield "function", record.funcName
    yield "line", record.lineno
    error = _error_of(record, event)
    if error is not None:
        yield "exception", type(error).__name__
        yield "stack", str(error) if getattr(error, "quotes_nothing", False) else _stack(error)


def _error_of(record: logging.LogRecord, event: Mapping[str, object]) -> BaseException | None:
    """Return the logged exception, from any of the places where logging and structlog store it."""
    exc_info: object = record.exc_info or event.get("exc_info")
    found = exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1] if exc_info is True else exc_info
    return found if isinstance(found, BaseException) else None


def _stack(error: BaseException) -> str:
    """Return the calls that led to an error, without its text and without lines of code."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_CALLS:]
    return "\n".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)


def _trace_of(event: Mapping[str, object]) -> Trace | None:
    """Return the trace of the envelope that an error is about, or None for an untraced one."""
    envelope_hash = event.get("envelope_hash")
    return trace_of(bytes.fromhex(envelope_hash)) if isinstance(envelope_hash, str) else None


@once
def exporter() -> "Exporter":
    """Return the exporter of this process."""
    from kit.otlp import Exporter  # noqa: PLC0415 - no cost for a process without traces and errors

    return Exporter()


def close() -> None:
    """Send the rest, for some seconds. It is for processes that end without Python's exit handlers."""
    if is_on():
        exporter().close()
