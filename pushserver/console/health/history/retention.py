"""Retention of rows about visits to the console: access log, incidents, sessions and failed logins."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.contrib.sessions.models import Session
from django.db.models import Exists, OuterRef

from kit.db.partitions import delete_in_chunks
from pushserver.models import AccessRecord, FailedLogin, Incident, ServerStart

INCIDENTS_KEPT = timedelta(days=30)


def purge_access_log(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Delete records of opened pages that are older than ``keep``. Yields how many rows each step deleted."""
    return delete_in_chunks(AccessRecord.objects.filter(at__lt=now - keep).order_by("at"))


def purge_incidents(*, now: datetime) -> Iterator[int]:
    """Delete incidents that ended before INCIDENTS_KEPT, and starts after which another one was that long ago: what ran
    until now tells whether the server's key was changed since. Yields how many rows each step deleted.
    """
    yield from delete_in_chunks(Incident.objects.filter(ended_at__lt=now - INCIDENTS_KEPT).order_by("ended_at"))
    later = ServerStart.objects.filter(started_at__gt=OuterRef("started_at"), started_at__lt=now - INCIDENTS_KEPT)
    yield from delete_in_chunks(ServerStart.objects.filter(Exists(later)).order_by("started_at"))


def purge_sessions(*, now: datetime) -> Iterator[int]:
    """Delete expired sessions, which nobody can continue. Yields how many rows each step deleted."""
    return delete_in_chunks(Session.objects.filter(expire_date__lt=now).order_by("expire_date"))


def purge_failed_logins(*, now: datetime) -> Iterator[int]:
    """Delete failed logins that lock nobody out any more. Yields how many rows each step deleted."""
    return delete_in_chunks(FailedLogin.objects.filter(last_at__lt=now - FailedLogin.COUNTED).order_by("last_at"))
