"""Spans of the work on traced messages: a step of its own, or a part of a step of a batch.

    batch ──┬── step ──links──▶ the messages that it worked on
            ├── step                     each has a span for the step in its own trace,
            └── ...                      which links back to the step

A batch is sent after its commit, and only if it worked on a traced message. Errors of tracing never reach the caller.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import wraps
from hashlib import blake2b
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

import structlog
from django.conf import settings

from kit.processes.once import once

TRACE_BYTES, SPAN_BYTES = 16, 8


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


if TYPE_CHECKING:
    from kit.tracing.exporting import Spans

log = structlog.get_logger(__name__)

Attributes = Mapping[str, object]
P = ParamSpec("P")


class Role(Enum):
    """The kind of a span, by its name in OpenTelemetry."""

    INTERNAL = auto()
    CLIENT = auto()  # a request to another server, with the wait for its answer
    CONSUMER = auto()  # the receipt of a message


@dataclass(slots=True)
class StepSpan:
    """One step of a batch: its times (nanoseconds since 1970), and the traces of its messages with attributes."""

    name: str
    began_ns: int
    ended_ns: int = 0
    noted: list[tuple[Trace, Attributes]] = field(default_factory=list)


_at_work: ContextVar[StepSpan | None] = ContextVar("step at work", default=None)


class _Traced:
    """A batch while tracing is on."""

    def __init__(self) -> None:
        self._began_ns = time_ns()
        self._step_spans: list[StepSpan] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Return the context manager around the work of a step."""
        step_span = StepSpan(name, time_ns())
        self._step_spans.append(step_span)
        before = _at_work.set(step_span)
        try:
            yield
        finally:
            _at_work.reset(before)
            step_span.ended_ns = time_ns()

    def committed(self) -> None:
        """Send the spans of the batch. Call it after the commit."""
        if any(step_span.noted for step_span in self._step_spans):
            _send_batch(self._began_ns, self._step_spans)


class _Untraced:
    """A batch while tracing is off."""

    def step(self, _name: str) -> AbstractContextManager[object]:
        return nullcontext()

    def committed(self) -> None:
        """Do nothing."""


UNTRACED = _Untraced()


def begin_batch() -> _Traced | _Untraced:
    """Begin the tracing of a batch. A batch that is rolled back needs no further call."""
    return _Traced() if is_on() else UNTRACED


def note(facts: Iterable[tuple[bytes, Attributes]]) -> None:
    """Record the messages that the current step has worked on, by their keys, with attributes from `allowed`.

    Outside of a traced step, and while tracing is off, ``facts`` is not iterated.
    """
    step_span = _at_work.get()
    if step_span is not None:
        _note(step_span, facts)


def _harmless(function: Callable[P, None]) -> Callable[P, None]:
    """Return a decorated function that logs its errors instead of raising them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - an error of tracing must not stop a message
            log.warning("not_traced", error=type(error).__name__)

    return call


@_harmless
def _note(step_span: StepSpan, facts: Iterable[tuple[bytes, Attributes]]) -> None:
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
    trace = trace_of(key)
    if trace is not None:
        spans().step(name, trace, began_ns, time_ns(), attributes, role=role, is_first=is_first, is_error=is_error)


@_harmless
def _send_batch(began_ns: int, step_spans: Iterable[StepSpan]) -> None:
    spans().batch(began_ns, time_ns(), step_spans)


def close() -> None:
    """Send the rest, for a second or two. It is for processes that end without Python's exit handlers."""
    if is_on():
        spans().close()


@once
def spans() -> "Spans":
    """Return the exporter of this process's spans. It imports the protocol of OpenTelemetry."""
    from kit.tracing.exporting import Spans  # noqa: PLC0415 - no cost for a process without traces

    return Spans()
