"""The periodic task of XMPP: the end of unused devices."""

from datetime import timedelta
from itertools import chain

import structlog
from celery import shared_task

from kit.db.clock import database_now
from kit.db.partitions import run_for_a_while
from kit.processes.tasks import MessageTask
from xmpp_bridge import devices

# A device that was neither pushed to nor registered again for this time ends. Its row is removed as much later.
KEEP_UNUSED = timedelta(days=90)
log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # no retry, because the schedule runs it again soon
def purge() -> None:
    """End devices that are unused for KEEP_UNUSED, and remove those that ended that long ago."""
    now, keep = database_now(), KEEP_UNUSED
    removed = run_for_a_while(chain(devices.expire(now=now, keep=keep), devices.purge(now=now, keep=keep)))
    if removed:
        log.info("purged", devices=removed)
