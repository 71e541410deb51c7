"""How much may be registered: so many installations of one key, so many new ones a minute, so many in all.

Anybody can make keys, and each new registration costs rows that stay. So what is new is limited; what is known already
is refreshed, changed and unregistered whatever else goes on.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from typing import LiteralString

from django.conf import settings
from django.db import transaction

from kit.buckets import Bucket
from kit.db.estimates import stored
from kit.db.statements import fetch
from registrations.rules import Refusal

# New installations that nobody registered for a while are saved up for as many minutes: a wave after an outage.
MINUTES_SAVED_UP = 10


@dataclass(slots=True)
class Room:
    """What one batch may still add. ``active`` are the installations by key hash that can be pushed to."""

    per_key: int
    new: float
    in_all: int
    active: Counter[bytes] = field(default_factory=Counter)
    added: int = 0

    def refusal(self, public_key_hash: bytes, *, is_new: bool, becomes_active: bool) -> Refusal | None:
        """Return why there is no room for an installation, or None and take the room."""
        if becomes_active and self.active[public_key_hash] >= self.per_key:
            return Refusal.TOO_MANY_INSTALLATIONS
        if is_new and self.added >= self.in_all:
            return Refusal.FULL
        if is_new and self.added + 1 > self.new:
            return Refusal.TOO_MANY_NEW
        self.added += is_new
        self.active[public_key_hash] += becomes_active
        return None

    def leave(self, public_key_hash: bytes) -> None:
        """Note that an active installation of this key unregistered."""
        self.active[public_key_hash] -= 1


STORED_REGISTRATIONS: LiteralString = stored("registrations_registration")
_TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = 'active' GROUP BY 1
"""  # noqa: S608 - our own statement


def room_for(public_key_hashes: Collection[bytes]) -> Room:
    """Return what may be added now, for a batch that has something new about these keys."""
    rows = fetch(_TAKEN, {"hashes": list(public_key_hashes)})
    (_, in_all), *active = rows
    return Room(
        per_key=settings.INSTALLATIONS_PER_KEY,
        new=_bucket(settings.NEW_INSTALLATIONS_PER_MINUTE).left(),
        in_all=settings.MAX_REGISTRATIONS - in_all,
        active=Counter(dict(active)),
    )


def take(room: Room) -> None:
    """Take what was added from the bucket of this process, if the transaction commits."""
    if added := room.added:
        bucket = _bucket(settings.NEW_INSTALLATIONS_PER_MINUTE)
        transaction.on_commit(lambda: bucket.spend(added))


@cache
def _bucket(per_minute: int) -> Bucket:
    return Bucket(per_minute / 60, per_minute * MINUTES_SAVED_UP)
