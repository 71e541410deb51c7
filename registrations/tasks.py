"""The periodic task of this app: removal of old history."""

from datetime import timedelta

import structlog
from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.processes.tasks import MessageTask
from registrations import retention

log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # not repeated, because the next one is scheduled soon
def purge() -> None:
    """Remove the history that is older than EVENT_RETENTION_DAYS."""
    keep = timedelta(days=settings.EVENT_RETENTION_DAYS)
    removed = sum(retention.purge(now=database_now(), keep=keep))
    if removed:
        log.info("purged", events=removed)
