"""Periodic tasks of XMPP: the canary, and the end of unused devices."""

from datetime import timedelta
from itertools import chain

import structlog
from celery import shared_task
from django.conf import settings

from kit.canary.engine import KEPT
from kit.db.clock import database_now
from kit.processes.tasks import MessageTask, run_for_a_while
from xmpp_bridge.canary import canary
from xmpp_bridge.devices import retention

# A device that was neither pushed to nor registered again for this time ends. Its row is removed as much later.
KEEP_UNUSED = timedelta(days=90)
log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # no retry, because the schedule runs it again soon
def run_canary() -> None:
    """Make a round trip, and repeat it while the chain is broken.

    The task has a queue of its own, because it waits for the workers of the other queues.
    """
    canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)


@shared_task(base=MessageTask, autoretry_for=())  # no retry, because the schedule runs it again soon
def purge() -> None:
    """End devices that are unused for KEEP_UNUSED, and remove those that ended that long ago, and old canary runs."""
    now, keep = database_now(), KEEP_UNUSED
    removed = run_for_a_while(chain(retention.expire(now=now, keep=keep), retention.purge(now=now, keep=keep)))
    removed_runs = run_for_a_while(canary.purge(now=now, keep=KEPT))
    if removed or removed_runs:
        log.info("purged", devices=removed, canary_runs=removed_runs)
