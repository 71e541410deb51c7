"""Forgetting what visits to the console leave behind."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from axes.models import AccessAttempt
from django.contrib.sessions.models import Session

from pushserver.models import OpenedRecord
from registrations.retention import delete_in_chunks


def purge_opened_records(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove what is noted of who opened whom, once it is older than ``keep``. Yields how many each step removed."""
    return delete_in_chunks(OpenedRecord.objects.filter(at__lt=now - keep).order_by("at"))


def purge_sessions(*, now: datetime) -> Iterator[int]:
    """Remove sessions that have ended by themselves: nobody can go on with them."""
    return delete_in_chunks(Session.objects.filter(expire_date__lt=now).order_by("expire_date"))


def purge_failed_logins(*, now: datetime, cooloff: timedelta) -> Iterator[int]:
    """Remove failed logins that keep nobody out any more. django-axes does so itself, but with the next login only."""
    return delete_in_chunks(AccessAttempt.objects.filter(attempt_time__lt=now - cooloff).order_by("attempt_time"))
