"""Deadlines: until when a request is answered, and a push is tried, once and at all. All code takes them from here."""

from datetime import UTC, datetime, timedelta
from typing import LiteralString

from django.conf import settings

# Another worker answers a request only when the accepting worker is late by this much.
GRACE_SECONDS = 0.5
GRACE = timedelta(seconds=GRACE_SECONDS)
IS_OVERDUE: LiteralString = f"reply_due_at <= %(now)s - interval '{GRACE_SECONDS} seconds'"


def reply_due_at(received_at: datetime) -> datetime:
    """Return when a request is answered at the latest, also with results missing.

    Requests that arrive within an eighth of the deadline have the same time, so one batch answers them together. During
    an outage each of them waits until then.
    """
    seconds = settings.REPLY_DEADLINE_SECONDS
    together = seconds / 8
    latest = received_at.timestamp() + seconds
    return datetime.fromtimestamp(latest // together * together, UTC)


def lease_until(claimed_at: datetime) -> datetime:
    """Return until when only the process that claimed a push sends it."""
    return claimed_at + timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)


def expires_at(accepted_at: datetime) -> datetime:
    """Return when a push of the messenger is given up."""
    return accepted_at + timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS)


def stands_for_others_until(now: datetime) -> datetime:
    """Return the earliest expiry of a waiting wake-up that may stand for later ones."""
    return now + timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS / 2)
