"""The scheduled tasks of the console."""

from datetime import timedelta
from itertools import chain

import structlog
from celery import shared_task
from django.conf import settings

from kit.db.clock import database_now
from kit.db.deleting import run_for_a_while
from kit.operations import parts
from kit.processes.tasks import MessageTask
from pushserver.history import hours, retention, traffic

log = structlog.get_logger(__name__)


@shared_task(base=MessageTask, autoretry_for=())  # beat sends the next one in five minutes
def purge_visits() -> None:
    """Delete old rows that only the console shows, for as long as one task may run."""
    now = database_now()
    keep = timedelta(days=settings.ACCESS_LOG_RETENTION_DAYS)
    removed = {
        "access_log": run_for_a_while(retention.purge_access_log(now=now, keep=keep)),
        "incidents": run_for_a_while(retention.purge_incidents(now=now)),
        "parts": run_for_a_while(chain.from_iterable(part.purge(now=now) for part in parts())),
        "sessions": run_for_a_while(retention.purge_sessions(now=now)),
        "failed_logins": run_for_a_while(retention.purge_failed_logins(now=now)),
    }
    if any(removed.values()):
        log.info("visits_purged", **removed)


@shared_task(base=MessageTask, autoretry_for=())  # beat sends the next one within seconds
def count_traffic() -> None:
    """Count the minutes that have ended, and add up the hours."""
    run_for_a_while(traffic.count_owed(now=database_now()))
    hours.add_up(now=database_now())
