"""Noting what is done for a message that is traced: as a step of its own, or as part of a step of a batch.

    turn ──┬── step ──links──▶ the messages that it worked on
           ├── step                     each has a span for it in its own trace,
           └── ...                       and that links back to the step

A batch is told after its commit, and not at all when no message that it worked on is traced. Nothing here fails its
caller.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import wraps
from hashlib import blake2b
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol

import structlog
from django.conf import settings

from kit.processes.once import once

TRACE_BYTES, SPAN_BYTES = 16, 8


class Trace(NamedTuple):
    """The trace of one message: its id, and the id of the span that it begins with."""

    id: int
    first_span_id: int

    @property
    def id_hex(self) -> str:
        """Return the id as collectors show it."""
        return f"{self.id:032x}"


def is_on() -> bool:
    """Return whether any message is traced."""
    return bool(settings.TRACES)


def trace_of(key: bytes) -> Trace | None:
    """Return the trace of the message that is known by this key, or None when it is not traced.

    The ids are a digest that only this server can make, so that nobody who sees a trace learns which message it is of,
    or can send messages that are all traced. Part of the id decides whether it is, as `TraceIdRatioBased` does it.
    """
    if not settings.TRACES:
        return None
    digest = blake2b(key, digest_size=TRACE_BYTES + SPAN_BYTES, key=settings.TRACES_KEY).digest()
    if int.from_bytes(digest[SPAN_BYTES:TRACE_BYTES]) >= settings.TRACES_SHARE * 2.0**64:
        return None
    return Trace(int.from_bytes(digest[:TRACE_BYTES]), int.from_bytes(digest[TRACE_BYTES:]))


if TYPE_CHECKING:
    from kit.tracing.exporting import Spans

log = structlog.get_logger(__name__)

Attributes = Mapping[str, object]
P = ParamSpec("P")


class Role(Enum):
    """What a step is to its process."""

    INTERNAL = auto()
    CLIENT = auto()  # it asks another server and waits for the answer
    CONSUMER = auto()  # it takes a message in


@dataclass(slots=True)
class StepSpan:
    """One step of a batch: when it worked (nanoseconds of Unix time), and on which messages."""

    name: str
    began_ns: int
    ended_ns: int = 0
    noted: list[tuple[Trace, Attributes]] = field(default_factory=list)


_at_work: ContextVar[StepSpan | None] = ContextVar("step at work", default=None)


class BatchTrace(Protocol):
    """What tracing wants to hear of a batch."""

    def step(self, name: str) -> AbstractContextManager[object]:
        """Return the context in which a step works."""
        ...

    def committed(self) -> None:
        """Tell what was done, now that it is committed and sent."""
        ...


class _Traced:
    """A batch that is told."""

    def __init__(self) -> None:
        self._began_ns = time_ns()
        self._step_spans: list[StepSpan] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        step_span = StepSpan(name, time_ns())
        self._step_spans.append(step_span)
        before = _at_work.set(step_span)
        try:
            yield
        finally:
            _at_work.reset(before)
            step_span.ended_ns = time_ns()

    def committed(self) -> None:
        if any(step_span.noted for step_span in self._step_spans):
            _send_batch(self._began_ns, self._step_spans)


class _Untraced:
    """A batch while tracing is off."""

    def step(self, _name: str) -> AbstractContextManager[object]:
        return nullcontext()

    def committed(self) -> None:
        """Do nothing."""


UNTRACED = _Untraced()


def begin_batch() -> BatchTrace:
    """Begin to listen to a batch. Whoever rolls it back just drops what this returned."""
    return _Traced() if is_on() else UNTRACED


def note(facts: Iterable[tuple[bytes, Attributes]]) -> None:
    """Note on which messages the step at work has worked: by their keys, with attributes that `allowed` knows.

    While tracing is off the facts are not even looked at.
    """
    step_span = _at_work.get()
    if step_span is not None:
        _note(step_span, facts)


def _harmless(function: Callable[P, None]) -> Callable[P, None]:
    """Keep a fault of tracing from whoever is traced."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a message counts for more than its trace
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
    """Tell a step that has just ended, of the message with this key. Its trace begins with the step that is first."""
    trace = trace_of(key)
    if trace is not None:
        spans().step(name, trace, began_ns, time_ns(), attributes, role=role, is_first=is_first, is_error=is_error)


@_harmless
def _send_batch(began_ns: int, step_spans: Iterable[StepSpan]) -> None:
    spans().batch(began_ns, time_ns(), step_spans)


def close() -> None:
    """Send what has not been sent, for a second or two. For processes that end without what Python does at the end."""
    if is_on():
        spans().close()


@once
def spans() -> "Spans":
    """Return what this process tells its spans to. With it comes the protocol of OpenTelemetry."""
    from kit.tracing.exporting import Spans  # noqa: PLC0415 - costs a process that traces nothing nothing

    return Spans()
