"""The wiring of delivery: the turns of a worker process, and its periodic tasks.

Every process of a prefork pool that serves the queue `turns` makes turns in a thread of its own. Nothing is ever put
into that queue: rows are the queue, and PostgreSQL announces them.
"""

import os
import threading
from datetime import timedelta

import structlog
from celery import shared_task, signals
from django.conf import settings
from django.utils import timezone

from kit.buckets.shared import forget_full
from kit.once import once
from kit.tasks import MessageTask, run_for_a_while
from kit.tracing import errors, steps
from kit.turns import Bell, Stage, Worker
from notifications import front_doors, retention, senders
from notifications.delivery.concurrency import ConcurrencyLimits
from notifications.delivery.desk import Delivery
from notifications.gateways.registry import gateway_for

log = structlog.get_logger(__name__)
QUEUE = "turns"
# How long a process that ends waits for pushes and replies that are under way.
STOP_SECONDS = 8.0
# Pushes of a queue that go out before anything was answered: at 50 ms each that is 320 a second.
FIRST_LIMIT = 16
SOFTWARE_ERROR = 70  # sysexits.h


def new_worker() -> Worker:
    """Return what makes the turns of one process."""
    bell = Bell()
    return Worker(new_stages(bell), bell)


def new_stages(bell: Bell) -> list[Stage]:
    """Return the stages of a process, in the order in which a turn makes them.

    front doors ──▶ intake ──▶ delivery ──────────────▶ outlet
                      requests   results, deadlines,      answers and replies,
                      accepted   what is due              handed on by all before it
    """
    lease = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
    limits = ConcurrencyLimits(settings.CHANNEL_IN_FLIGHT, first=FIRST_LIMIT)
    delivery = Delivery(gateway_for, bell, lease=lease, limits=limits)
    doors = front_doors.open_all(delivery, bell)
    intake = [stage for door in doors.values() for stage in door.intake()]
    outlet = [stage for door in doors.values() for stage in door.outlet()]
    return [*intake, *delivery.stages(), *outlet]


class Turns(threading.Thread):
    """The thread of a process that makes its turns."""

    def __init__(self) -> None:
        super().__init__(name="turns", daemon=True)
        self._worker = new_worker()

    def run(self) -> None:
        """Make turns. After an unknown error the process ends, and Celery starts another one."""
        try:
            self._worker.run()
        except BaseException as error:  # noqa: BLE001 - the process ends
            log.critical("turns_ended", error=type(error).__name__)
            errors.close()
            os._exit(SOFTWARE_ERROR)

    def stop(self) -> None:
        """Finish what is under way, for at most `STOP_SECONDS`."""
        self._worker.stop(patience_seconds=STOP_SECONDS)
        self.join(STOP_SECONDS + 2)


@once
def own_turns() -> Turns:
    """Return the thread of this process that makes turns."""
    return Turns()


@signals.worker_process_init.connect
def start_turns(**_kwargs: object) -> None:
    """Start making turns, in each process of a worker that serves their queue."""
    from celery import current_app  # noqa: PLC0415 - the application of the worker is there only now

    if QUEUE in current_app.amqp.queues.consume_from:
        own_turns().start()


@signals.worker_process_shutdown.connect
def stop_turns(**_kwargs: object) -> None:
    """Finish what is under way before the process ends."""
    if any(thread.name == "turns" for thread in threading.enumerate()):
        own_turns().stop()
        for told in (steps, errors):  # children of a pool end without what Python does at the end
            told.close()


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """Remove what is older than the settings promise. What is left when the time is over waits for the next run."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS)
    now = timezone.now()
    senders.forget_quiet(now=now, keep=keep)
    forget_full(now=now)
    removed = run_for_a_while(retention.purge(now=now, keep=keep))
    if removed:
        log.info("purged", requests=removed)
