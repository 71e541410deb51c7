"""Tasks of delivery: the one that processes batches, and the periodic ones.

`process_batches` runs in each child of a prefork pool until its worker stops. The queue consists of rows in PostgreSQL,
which notifies the processes of new ones. So a running process needs no broker.
"""

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import structlog
from celery import shared_task, signals
from django.conf import settings

from kit.batches.batch import Step, Wakeup
from kit.batches.worker import Worker
from kit.buckets.shared import forget_full
from kit.db.clock import database_now
from kit.db.partitions import run_for_a_while
from kit.processes.tasks import WORKER_STOP, MessageTask
from kit.telemetry import close
from notifications import retention
from notifications.delivery.steps import Delivery
from notifications.gateways import gateway_for, open_all

log = structlog.get_logger(__name__)
# A process that ends waits this long for its pushes and replies in flight.
STOP_SECONDS = 8.0
# The key of a request (16 bytes) outlives the request, so that a recording of it is not carried out again.
KEYS_KEPT = timedelta(days=90)
SOFTWARE_ERROR = 70  # sysexits.h

# Bridges, which take requests from senders and return answers to them -------------------------------------------------
#
# Delivery imports none of them. Each bridge registers itself under the name that its requests are stored with. Every
# process that processes batches opens it once. A bridge works in steps: those that take requests run before delivery in
# a batch, and those that send answers run after it.


class Bridge(Protocol):
    """One way into the server, opened in one process."""

    def intake(self) -> Sequence[Step]:
        """Return the steps that take requests. They call `acceptance.accept` and pass on its answers.

        After the commit they call `Delivery.accepted` and then `own_buckets().keep`, after a rollback `take_back`.
        """
        ...

    def outlet(self) -> Sequence[Step]:
        """Return the steps that send the answers passed on under the name of this bridge."""
        ...


Open = Callable[[Delivery, Wakeup], Bridge]
_registered: dict[str, Open] = {}


def register_bridge(name: str, open_it: Open) -> None:
    """Register a bridge. ``name`` is stored with its requests."""
    _registered[name] = open_it


# Batches --------------------------------------------------------------------------------------------------------------


def new_steps(wakeup: Wakeup) -> list[Step]:
    """Return the steps of a process, in the order in which a batch runs them.

    bridges ──▶ intake ──▶ delivery ──────────────▶ outlet
                requests   results, deadlines,      answers and replies,
                accepted   what is due              passed on by all before it
    """
    open_all()
    delivery = Delivery(gateway_for, wakeup)
    opened = [open_it(delivery, wakeup) for open_it in _registered.values()]
    intake = [step for bridge in opened for step in bridge.intake()]
    outlet = [step for bridge in opened for step in bridge.outlet()]
    return [*intake, *delivery.steps(), *outlet]


@shared_task(base=MessageTask, autoretry_for=())  # not retried, because a free child receives it again
def process_batches() -> None:
    """Process batches until the worker stops. After an unknown error the process ends, and Celery forks another one."""
    if WORKER_STOP.is_set():
        return
    has_ended = threading.Event()
    try:
        wakeup = Wakeup()
        worker = Worker(new_steps(wakeup), wakeup)
        threading.Thread(target=_stop_in_time, args=[worker, has_ended], name="stop", daemon=True).start()
        worker.run()
    except Exception as error:  # noqa: BLE001 - the process ends
        log.critical("batches_ended", error=type(error).__name__)
        _end()
    has_ended.set()


def _stop_in_time(worker: Worker, has_ended: threading.Event) -> None:
    """Wait for the stop, then give pushes and replies in flight at most `STOP_SECONDS`.

    A process whose statement hangs is ended soon after, and PostgreSQL rolls the statement back.
    """
    WORKER_STOP.wait()
    worker.stop(timeout_seconds=STOP_SECONDS)
    if not has_ended.wait(STOP_SECONDS + 2):
        log.warning("batches_cut_off")
        try:
            worker.roll_back()
        finally:
            _end()


def _end() -> None:
    close_exports()
    os._exit(SOFTWARE_ERROR)


@signals.worker_process_shutdown.connect
def close_exports(**_kwargs: object) -> None:
    """Export the remaining traces and errors. Children of a pool end without Python's own exit handlers."""
    close()


@shared_task(base=MessageTask, autoretry_for=())  # not retried, because the next run comes soon
def purge() -> None:
    """Remove what is older than the settings promise. Rows that are left at the end wait for the next run."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS)
    keep_keys = max(keep, KEYS_KEPT)  # the key alone identifies a request
    now = database_now()
    forget_full(now=now)
    run_for_a_while(retention.purge(now=now, keep=keep))
    run_for_a_while(retention.purge_digests(now=now, keep=keep_keys))
