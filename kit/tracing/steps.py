"""Noting what is done for a message that is traced: as a step of its own, or as part of a stage of a turn.

    turn ──┬── stage ──links──▶ the messages that it worked on
           ├── stage                     each has a span for it in its own trace,
           └── ...                       and that links back to the stage

A turn is told after its commit, and not at all when no message that it worked on is traced. Nothing here fails its
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

from kit.once import once

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
class Stage:
    """One stage of a turn: when it worked (nanoseconds of Unix time), and on which messages."""

    name: str
    began_ns: int
    ended_ns: int = 0
    noted: list[tuple[Trace, Attributes]] = field(default_factory=list)


_at_work: ContextVar[Stage | None] = ContextVar("stage at work", default=None)


class Turn(Protocol):
    """What tracing wants to hear of a turn."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return the context in which a stage works."""
        ...

    def committed(self) -> None:
        """Tell what was done, now that it is committed and sent."""
        ...


class _Traced:
    """A turn that is told."""

    def __init__(self) -> None:
        self._began_ns = time_ns()
        self._stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        stage = Stage(name, time_ns())
        self._stages.append(stage)
        before = _at_work.set(stage)
        try:
            yield
        finally:
            _at_work.reset(before)
            stage.ended_ns = time_ns()

    def committed(self) -> None:
        if any(stage.noted for stage in self._stages):
            _tell_turn(self._began_ns, self._stages)


class _Untold:
    """A turn while tracing is off."""

    def stage(self, _name: str) -> AbstractContextManager[object]:
        return nullcontext()

    def committed(self) -> None:
        """Do nothing."""


UNTOLD = _Untold()


def begin_turn() -> Turn:
    """Begin to listen to a turn. Whoever rolls it back just drops what this returned."""
    return _Traced() if is_on() else UNTOLD


def note(facts: Iterable[tuple[bytes, Attributes]]) -> None:
    """Note on which messages the stage at work has worked: by their keys, with attributes that `allowed` knows.

    While tracing is off the facts are not even looked at.
    """
    stage = _at_work.get()
    if stage is not None:
        _note(stage, facts)


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
def _note(stage: Stage, facts: Iterable[tuple[bytes, Attributes]]) -> None:
    stage.noted += [(trace, attributes) for key, attributes in facts if (trace := trace_of(key))]


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
def _tell_turn(began_ns: int, stages: Iterable[Stage]) -> None:
    spans().turn(began_ns, time_ns(), stages)


def close() -> None:
    """Send what has not been sent, for a second or two. For processes that end without what Python does at the end."""
    if is_on():
        spans().close()


@once
def spans() -> "Spans":
    """Return what this process tells its spans to. With it comes the protocol of OpenTelemetry."""
    from kit.tracing.exporting import Spans  # noqa: PLC0415 - costs a process that traces nothing nothing

    return Spans()
