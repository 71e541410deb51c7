"""One log for all processes: constant event names with data in keywords, as text for people or JSON for machines.

Secrets are kept out at the source. The processor below is the second net: it blanks keywords that may never be logged.
"""

import logging
import logging.config
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_KEYWORDS = frozenset({"device_token", "access_token", "private_key", "payload", "password", "token", "message"})


def blank_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the values of keywords that must never be logged."""
    for keyword in SECRET_KEYWORDS & event.keys():
        event[keyword] = "[redacted]"
    return event


SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    blank_secrets,
)
# The level comes first, so that a line that nobody wants costs nothing more. It is one list, because loggers keep the
# one that they were first used with, also when logging is set up again.
PROCESSORS = [
    structlog.stdlib.filter_by_level,
    *SHARED,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]
LOGGERS = {
    # One line per task and per HTTP call is noise at a thousand messages a second.
    "celery.worker.strategy": {"level": "WARNING"},
    "celery.app.trace": {"level": "WARNING"},
    "celery.beat": {"level": "WARNING"},
    "httpx": {"level": "WARNING"},
    "django.request": {"level": "ERROR"},
    # Logged statements would quote what they store.
    "django.db.backends": {"level": "WARNING"},
    # It warns of each statement behind one that failed, and might quote what that one stores.
    "psycopg": {"level": "ERROR"},
}


def configure_logging(*, as_json: bool, level: str, exports_errors: bool = False) -> None:
    """Set up structlog and the logging of all libraries on standard error, and for errors also at a collector if it
    ``exports_errors``.
    """
    structlog.configure(
        processors=PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": SHARED,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *(_for_machines() if as_json else _for_people()),
        ],
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"structlog": formatter},
            "handlers": {
                "stderr": {"class": "logging.StreamHandler", "formatter": "structlog"},
                **({"collector": {"class": "kit.telemetry.ErrorHandler"}} if exports_errors else {}),
            },
            "root": {
                "handlers": ["stderr", *(["collector"] if exports_errors else [])],
                "level": level,
            },
            "loggers": LOGGERS,
        }
    )


def _for_machines() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _for_people() -> list[Processor]:
    """Return the processors for a terminal.

    Tracebacks are plain, as rich ones print local variables, which may hold tokens and keys.
    """
    tracebacks = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=tracebacks, pad_event_to=32)]
