"""The periodic task of XMPP: ending devices that nobody uses."""

from datetime import timedelta
from itertools import chain

import structlog
from celery import shared_task
from django.conf import settings
from django.utils import timezone

from kit.tasks import MessageTask, run_for_a_while
from xmpp_bridge import retention

log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one comes in a moment
def purge() -> None:
    """End what has not been used for as long as the settings say, and forget what ended as long ago."""
    now, keep = timezone.now(), timedelta(days=settings.XMPP_DEVICE_DAYS)
    removed = run_for_a_while(chain(retention.expire(now=now, keep=keep), retention.purge(now=now, keep=keep)))
    if removed:
        log.info("purged", devices=removed)
