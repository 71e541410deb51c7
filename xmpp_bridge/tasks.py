"""The periodic tasks of XMPP: the canary, and ending devices that nobody uses."""

from datetime import timedelta
from itertools import chain

import structlog
from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.tasks import MessageTask, run_for_a_while
from xmpp_bridge.canary import canary
from xmpp_bridge.devices import retention

log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def run_canary() -> None:
    """Make a round trip, in a queue apart from the workers that it waits for."""
    canary.run()


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """End what has not been used for as long as the settings say, and forget what ended as long ago."""
    now, keep = database_now(), timedelta(days=settings.XMPP_DEVICE_DAYS)
    removed = run_for_a_while(chain(retention.expire(now=now, keep=keep), retention.purge(now=now, keep=keep)))
    keep_runs = timedelta(days=settings.CANARY_RETENTION_DAYS)
    removed_runs = run_for_a_while(canary.purge(now=now, keep=keep_runs))
    if removed or removed_runs:
        log.info("purged", devices=removed, canary_runs=removed_runs)
