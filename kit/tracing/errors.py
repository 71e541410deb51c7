"""Errors that any process logs, told to a collector: a handler of Python's logging.

What arrives here has gone through the redaction of the log. Of that only constant words and places in the code leave:
what a library says may quote data, so of its errors it is told who said it, where, and of which type they are.
"""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from kit.processes.once import once
from kit.tracing.spans import Trace, trace_of

if TYPE_CHECKING:
    from kit.tracing.exporting import Errors

# What exports: its errors would be exported.
OWN = "kit.tracing"
# Of a stack so many calls are told, the innermost.
MAX_CALLS = 20
LIBRARY_ERROR = "library_error"
NS_PER_SECOND = 10**9


class ErrorHandler(logging.Handler):
    """Tells errors to the collector of the settings. It never raises, and never waits for the collector."""

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
            _errors().export(name, attributes, at_ns=at_ns, severity=record.levelname, trace=_trace_of(event))
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
    """Return the exception that was logged, in whichever of the ways that logging and structlog have."""
    exc_info: object = record.exc_info or event.get("exc_info")
    found = exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1] if exc_info is True else exc_info
    return found if isinstance(found, BaseException) else None


def _stack(error: BaseException) -> str:
    """Return where an error came from, without its text and without lines of code."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_CALLS:]
    return "\n".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)


def _trace_of(event: Mapping[str, object]) -> Trace | None:
    """Return the trace of the envelope that an error is about, if it is about one that is traced."""
    envelope_hash = event.get("envelope_hash")
    return trace_of(bytes.fromhex(envelope_hash)) if isinstance(envelope_hash, str) else None


def close() -> None:
    """Send what has not been sent, for a second or two. For processes that end without what Python does at the end."""
    if settings.TRACES_ERRORS:
        _errors().close()


@once
def _errors() -> "Errors":
    from kit.tracing.exporting import Errors  # noqa: PLC0415 - costs a process that logs no error nothing

    return Errors()
