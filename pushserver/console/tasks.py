"""The scheduled tasks of the console: removing, counting, config checks and canaries."""

from contextlib import suppress
from datetime import timedelta
from smtplib import SMTPException
from typing import Any

import structlog
from celery import shared_task, signals
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import QuerySet
from kombu.exceptions import OperationalError

from kit.db.clock import database_now
from kit.db.partitions import delete_in_chunks, run_for_a_while
from kit.processes.tasks import MessageTask
from pushserver.celery import app, serves_maintenance
from pushserver.console.canary.waku import canary as waku_canary
from pushserver.console.canary.xmpp import canary as xmpp_canary
from pushserver.console.checks.gorush import check_all as check_all_gorush
from pushserver.console.checks.nodes import check_all as check_all_nodes
from pushserver.console.health import incidents, traffic
from pushserver.console.health.watch import Watch
from pushserver.console.models import AccessRecord, CanaryRun, FailedLogin
from pushserver.console.reports.mail import send_owed
from pushserver.threads import Beat
from spark_reports.export.pseudonyms import destroy_seeds
from spark_reports.nights import status

log = structlog.get_logger(__name__)

CHECKS_AFTER_SECONDS = 8


@shared_task(name="pushserver.tasks.purge_visits", base=MessageTask, autoretry_for=())  # the next comes in 5 minutes
def purge_visits() -> None:
    """Delete old rows that only the console shows, for as long as one task may run."""
    now = database_now()
    keep = timedelta(days=settings.ACCESS_LOG_RETENTION_DAYS)
    for canary in (waku_canary, xmpp_canary):
        canary.remove_leftovers(now=now)
    removed = {
        "access_log": _delete(AccessRecord.objects.filter(at__lt=now - keep).order_by("at")),
        "incidents": run_for_a_while(incidents.purge(now=now)),
        "canary_runs": _delete(CanaryRun.objects.filter(started_at__lt=now - CanaryRun.KEPT).order_by("started_at")),
        "sessions": _delete(Session.objects.filter(expire_date__lt=now).order_by("expire_date")),
        "failed_logins": _delete(FailedLogin.objects.filter(last_at__lt=now - FailedLogin.COUNTED).order_by("last_at")),
    }
    if any(removed.values()):
        log.info("visits_purged", **removed)


def _delete(rows: QuerySet[Any]) -> int:
    return run_for_a_while(delete_in_chunks(rows))


@shared_task(name="pushserver.tasks.count_traffic", base=MessageTask, autoretry_for=())  # the next comes in seconds
def count_traffic() -> None:
    """Count the minutes that have ended, and add up the hours."""
    run_for_a_while(traffic.count_owed(now=database_now()))
    traffic.add_up(now=database_now())


@shared_task(name="spark_reports.tasks.watch_reports", base=MessageTask, autoretry_for=())  # as above
def watch_reports() -> None:
    """Save the status of the reports for `/readyz`, log an alarm, mail what is owed, and destroy the seeds that no
    export needs.
    """
    destroy_seeds(database_now())
    found = status.status(database_now())
    status.SAVED.save(found)
    if found.is_alarm:
        log.warning("reports_missing", reason=found.words)
    try:
        send_owed(now=database_now())
    except (OSError, SMTPException) as error:
        log.warning("night_not_mailed", error=type(error).__name__)


@shared_task(name="waku_bridge.tasks.check_nodes", base=MessageTask, autoretry_for=())  # the next one comes in a moment
def check_nodes() -> None:
    """Check the configuration of all nodes."""
    check_all_nodes(now=database_now())


@shared_task(name="notifications.gateways.gorush.tasks.check_gorush", base=MessageTask, autoretry_for=())  # as above
def check_gorush() -> None:
    """Check the configuration of all gorush servers."""
    check_all_gorush(settings.GORUSH_URLS, now=database_now())


@shared_task(name="waku_bridge.tasks.run_canary", base=MessageTask, autoretry_for=())  # as above
def run_waku_canary() -> None:
    """Make a round trip, and more of them while the chain is broken, until the next task is due.

    The task has a queue of its own: it waits for the workers, so it must not occupy one of them.
    """
    if settings.WAKU_NODES:
        waku_canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)


@shared_task(name="xmpp_bridge.tasks.run_canary", base=MessageTask, autoretry_for=())  # as above
def run_xmpp_canary() -> None:
    """Make a round trip, and repeat it while the chain is broken."""
    xmpp_canary.run_until_sound(seconds=settings.CANARY_PERIOD_SECONDS)


@signals.worker_ready.connect
def start_threads(**_kwargs: Any) -> None:
    """Run beat and the watch in the worker for maintenance. They end first, so that no task of theirs has to wait."""
    if serves_maintenance():
        for thread in (Beat(app), Watch()):
            signals.worker_shutting_down.connect(lambda thread=thread, **_: thread.stop(), weak=False)
            thread.start()


@signals.worker_ready.connect
def check_at_start(**_kwargs: Any) -> None:
    """Check the servers behind gateways and bridges soon after the start. Beat does so minutes later.

    The checks wait CHECKS_AFTER_SECONDS: those servers and the workers for batches may be starting, too.
    """
    if serves_maintenance():
        with suppress(OperationalError):  # the broker is away again: beat runs the checks later
            scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
            for task in (check_nodes, run_waku_canary, run_xmpp_canary, check_gorush):
                if task.name in scheduled:
                    app.send_task(task.name, countdown=CHECKS_AFTER_SECONDS, expires=60)
