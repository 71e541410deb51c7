"""A metrics port for processes without a web server on their METRICS_DIR, such as those in containers of their own."""

import os
from errno import EADDRINUSE
from threading import Thread
from time import monotonic, sleep

import structlog
from django.conf import settings
from prometheus_client import CollectorRegistry, start_http_server

from kit.metrics.files import Counted

RETRY_SECONDS = 0.5
# Longer than the shutdown of a process that this one replaces.
LOG_AFTER_SECONDS = 30.0
log = structlog.get_logger(__name__)


def serve() -> None:
    """Serve the metrics of this process and its children at METRICS_HOST and METRICS_PORT, or nowhere if the port is 0.

    A taken port does not stop the process. A thread waits for the port: the process that this one replaces uses it
    until it ends, and it ends only when this one has started.
    """
    if not settings.METRICS_PORT:
        return
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    fault = _open(registry)
    if fault == EADDRINUSE:
        Thread(target=_open_later, args=(registry,), name="metrics-port", daemon=True).start()
    elif fault:
        _log_fault(fault)


def _open(registry: CollectorRegistry) -> int:
    """Open the port, and return 0 or the error number of the failure."""
    try:
        start_http_server(settings.METRICS_PORT, settings.METRICS_HOST, registry)
    except OSError as error:
        return error.errno or EADDRINUSE
    return 0


def _open_later(registry: CollectorRegistry) -> None:
    log_at = monotonic() + LOG_AFTER_SECONDS
    while fault := _open(registry):
        if monotonic() >= log_at:
            log_at = float("inf")
            _log_fault(fault)
        sleep(RETRY_SECONDS)


def _log_fault(fault: int) -> None:
    log.error("metrics_port_not_opened", port=settings.METRICS_PORT, error=os.strerror(fault))
