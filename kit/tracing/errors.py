"""Logging handler that sends the logged errors of any process to the collector.

Records arrive here after the redaction of the log. Only constant words and places in the code leave. The text of a
library's error may quote data, so only the logger, the place and the type of that error are sent.
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

# The handler skips errors of the exporting code itself, which would cause new ones.
OWN = "kit.tracing"
# Number of calls of a stack that are sent: the innermost ones.
MAX_CALLS = 20
LIBRARY_ERROR = "library_error"
NS_PER_SECOND = 10**9


class ErrorHandler(logging.Handler):
    """Sends errors to the collector of the settings. It never raises, and never waits for the collector."""

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


def close() -> None:
    """Send the rest, for a second or two. It is for processes that end without Python's exit handlers."""
    if settings.TRACES_ERRORS:
        _errors().close()


@once
def _errors() -> "Errors":
    from kit.tracing.exporting import Errors  # noqa: PLC0415 - no cost for a process without errors

    return Errors()
