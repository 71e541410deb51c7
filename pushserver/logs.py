"""One log for all processes: constant event names with data in keywords, as text for people or JSON for machines.

Secrets are kept out at the source. The processor below is the second net: it blanks keywords that may never be logged.
"""

import logging
import logging.config
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

SECRET_KEYWORDS = frozenset({"device_token", "access_token", "private_key", "payload", "password", "token", "message"})
LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "ERROR"})


def blank_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for keyword in SECRET_KEYWORDS & event.keys():
        event[keyword] = "[redacted]"
    return event


def configure_logging(*, as_json: bool, level: str) -> None:
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        blank_secrets,
    ]
    # Tracebacks are plain: rich ones print local variables, and those may hold tokens and keys.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=32
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": shared,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if as_json else [console]),
        ],
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"structlog": formatter},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structlog"}},
            "root": {"handlers": ["stderr"], "level": level if level in LEVELS else "INFO"},
            "loggers": {
                # One line per task and per HTTP call is noise at a thousand messages a second.
                "celery.worker.strategy": {"level": "WARNING"},
                "celery.app.trace": {"level": "WARNING"},
                "celery.beat": {"level": "WARNING"},
                "httpx": {"level": "WARNING"},
                "django.request": {"level": "ERROR"},
                # Its statements quote what they store.
                "django.db.backends": {"level": "WARNING"},
            },
        }
    )
