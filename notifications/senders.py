"""Senders who ask for more than their limits allow, and those whom an operator muted.

A sender is known by the keyed digest of its key, which says nothing about who it is. It has a row once it was beyond a
limit, its own or that of an address, or once it is muted.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from time import monotonic

import structlog
from django.db import transaction

from kit.db.statements import fetch
from kit.once import once
from notifications.models import Sender

log = structlog.get_logger(__name__)

# Mutes hold within this time in every worker, and counts are written as often.
REFRESHED_EVERY_SECONDS = 3.0
# Anybody may have as many keys as they like: of more than so many at a time, those that ask for most are noted.
MAX_NOTED = 500

_NOTE = """
    INSERT INTO notifications_sender (digest, beyond_count, first_beyond_at, last_beyond_at, muted_by, muted_why)
    SELECT digest, number, %(now)s, %(now)s, '', ''
    FROM unnest(%(digests)b::bytea[], %(numbers)b::bigint[]) AS noted (digest, number) ORDER BY digest
    ON CONFLICT (digest) DO UPDATE SET beyond_count = notifications_sender.beyond_count + excluded.beyond_count,
        first_beyond_at = coalesce(notifications_sender.first_beyond_at, excluded.first_beyond_at),
        last_beyond_at = excluded.last_beyond_at
"""
_MUTED = "SELECT digest FROM notifications_sender WHERE muted_at IS NOT NULL"


class Senders:
    """What a process knows of senders: who is muted, and what has to be noted about whom."""

    def __init__(self) -> None:
        self.muted: frozenset[bytes] = frozenset()
        self._beyond: Counter[bytes] = Counter()
        self._refresh_at = float("-inf")

    def note_beyond(self, digests: Iterable[bytes]) -> None:
        """Count notifications that were beyond a limit, by sender."""
        self._beyond.update(digests)

    def refresh(self, *, now: datetime) -> None:
        """Write what was counted and read who is muted, if that was a while ago."""
        if monotonic() < self._refresh_at:
            return
        self._refresh_at = monotonic() + REFRESHED_EVERY_SECONDS
        noted, self._beyond = self._beyond.most_common(MAX_NOTED), Counter()
        if noted:
            digests, numbers = zip(*noted, strict=True)
            fetch(_NOTE, {"now": now, "digests": list(digests), "numbers": list(numbers)})
        self.muted = frozenset(digest for (digest,) in fetch(_MUTED))


@once
def own_senders() -> Senders:
    """Return the senders as this process knows them."""
    return Senders()


@transaction.atomic
def mute(digests: Collection[bytes], *, by: str, why: str, now: datetime) -> int:
    """Deliver nothing of these senders from now on, and tell them success. Return how many were not muted before."""
    Sender.objects.bulk_create([Sender(digest=digest) for digest in digests], ignore_conflicts=True)
    muted = Sender.objects.filter(digest__in=digests, muted_at__isnull=True)
    number = muted.update(muted_at=now, muted_by=by, muted_why=why)
    log.warning("senders_muted", count=number)
    return number


def unmute(digests: Collection[bytes]) -> int:
    """Deliver what these senders ask for from now on, and return how many were muted."""
    muted = Sender.objects.filter(digest__in=digests, muted_at__isnull=False)
    number = muted.update(muted_at=None, muted_by="", muted_why="")
    log.warning("senders_unmuted", count=number)
    return number


def forget_quiet(*, now: datetime, keep: timedelta) -> int:
    """Remove senders that were beyond no limit for so long, and are not muted. Return how many."""
    deleted, _ = Sender.objects.filter(muted_at__isnull=True, last_beyond_at__lt=now - keep).delete()
    return deleted
