"""The periodic tasks of XMPP: the canary, and ending devices that nobody uses."""

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

# Devices that were neither pushed to nor registered again are forgotten after this.
KEEP_UNUSED = timedelta(days=90)
log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def run_canary() -> None:
    """Make a round trip, and more of them while the chain is broken, in a queue apart from the workers that it waits
    for.
    """
    canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """End what has not been used for for long, and forget what ended as long ago."""
    now, keep = database_now(), KEEP_UNUSED
    removed = run_for_a_while(chain(retention.expire(now=now, keep=keep), retention.purge(now=now, keep=keep)))
    removed_runs = run_for_a_while(canary.purge(now=now, keep=KEPT))
    if removed or removed_runs:
        log.info("purged", devices=removed, canary_runs=removed_runs)
