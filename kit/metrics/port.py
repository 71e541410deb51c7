"""A metrics port for a process that shares no METRICS_DIR with a web server. In containers each process has its own."""

import os

import structlog
from django.conf import settings
from prometheus_client import CollectorRegistry, start_http_server

from kit.metrics.files import Counted

log = structlog.get_logger(__name__)


def serve() -> None:
    """Show what this process and its children count at METRICS_HOST and METRICS_PORT, or nowhere when the port is 0.

    A port that is taken does not keep the process from its work.
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
