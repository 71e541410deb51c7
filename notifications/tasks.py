"""The wiring of delivery: the task that processes batches, and the periodic ones.

`process_batches` runs in each child of a prefork pool until its worker stops. Rows are the queue, and PostgreSQL
announces them: once it runs it needs no broker.
"""

import os
import threading
from datetime import timedelta

import structlog
from celery import shared_task, signals
from django.conf import settings

from kit.batches.batch import Step, Wakeup, Worker
from kit.buckets.shared import forget_full
from kit.db.clock import database_now
from kit.processes.stopping import WORKER_STOP
from kit.processes.tasks import MessageTask, run_for_a_while
from kit.tracing import errors, spans
from notifications import bridges, retention
from notifications.delivery.steps import Delivery
from notifications.gateways.registry import gateway_for, open_all
from notifications.queues.concurrency import ConcurrencyLimits

log = structlog.get_logger(__name__)
# How long a process that ends waits for pushes and replies that are under way.
STOP_SECONDS = 8.0
# Pushes of a queue that are under way before anything was answered: at 50 ms each that is 640 a second. A backlog gets
# half of them; with eight, addresses that always time out kept it waiting for minutes.
FIRST_LIMIT = 32
# What is left of a request that is removed, so that its recording is not carried out again: 16 bytes.
KEYS_KEPT = timedelta(days=90)
SOFTWARE_ERROR = 70  # sysexits.h


def new_worker() -> Worker:
    """Return what processes the batches of one process."""
    wakeup = Wakeup()
    return Worker(new_steps(wakeup), wakeup)


def new_steps(wakeup: Wakeup) -> list[Step]:
    """Return the steps of a process, in the order in which a batch makes them.

    bridges ──▶ intake ──▶ delivery ──────────────▶ outlet
                      requests   results, deadlines,      answers and replies,
                      accepted   what is due              handed on by all before it
    """
    lease = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
    limits = ConcurrencyLimits(settings.CHANNEL_IN_FLIGHT, first=FIRST_LIMIT)
    open_all()
    delivery = Delivery(gateway_for, wakeup, lease=lease, limits=limits)
    opened = bridges.open_all(delivery, wakeup)
    intake = [step for bridge in opened.values() for step in bridge.intake()]
    outlet = [step for bridge in opened.values() for step in bridge.outlet()]
    return [*intake, *delivery.steps(), *outlet]


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because a free child is asked again
def process_batches() -> None:
    """Process batches until the worker stops. After an unknown error the process ends, and Celery forks another one."""
    if WORKER_STOP.is_set():
        return
    has_ended = threading.Event()
    try:
        worker = new_worker()
        threading.Thread(target=_stop_in_time, args=[worker, has_ended], name="stop", daemon=True).start()
        worker.run()
    except Exception as error:  # noqa: BLE001 - the process ends
        log.critical("batches_ended", error=type(error).__name__)
        _end()
    has_ended.set()


def _stop_in_time(worker: Worker, has_ended: threading.Event) -> None:
    """Wait for the stop, and have what is in flight finished for at most `STOP_SECONDS`.

    A process whose statement hangs ends soon after: PostgreSQL rolls it back.
    """
    WORKER_STOP.wait()
    worker.stop(timeout_seconds=STOP_SECONDS)
    if not has_ended.wait(STOP_SECONDS + 2):
        log.warning("batches_cut_off")
        _end()


def _end() -> None:
    close_exports()
    os._exit(SOFTWARE_ERROR)


@signals.worker_process_shutdown.connect
def close_exports(**_kwargs: object) -> None:
    """Export what is left of traces and errors: children of a pool end without what Python does at the end."""
    for exports in (spans, errors):
        exports.close()


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """Remove what is older than the settings promise. What is left when the time is over waits for the next run."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS)
    keep_keys = max(keep, KEYS_KEPT)  # a request is known by its key alone
    now = database_now()
    forget_full(now=now)
    run_for_a_while(retention.purge(now=now, keep=keep))
    run_for_a_while(retention.purge_digests(now=now, keep=keep_keys))
