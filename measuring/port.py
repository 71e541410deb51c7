"""A port of its own for a process that shares no METRICS_DIR with a web server: in containers each has its own."""

import os

import structlog
from django.conf import settings
from prometheus_client import CollectorRegistry, start_http_server

from measuring.files import Counted

log = structlog.get_logger(__name__)


def serve() -> None:
    """What this process and its children count, for whoever reaches METRICS_HOST and METRICS_PORT; 0: for nobody.

    A port that is taken is no reason not to work.
    """
    if not settings.METRICS_PORT:
        return
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    try:
        start_http_server(settings.METRICS_PORT, settings.METRICS_HOST, registry)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        log.error("metrics_port_not_opened", port=settings.METRICS_PORT, error=reason)  # noqa: TRY400 - nothing to trace
