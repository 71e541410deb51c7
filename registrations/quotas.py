"""How much may be registered: so many installations of one key, so many new ones a minute, so many in all.

Anybody can make keys, and each new registration costs rows that stay. So what is new is limited; what is known already
is refreshed, changed and unregistered whatever else goes on.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import LiteralString, Protocol

from django.conf import settings

from kit.buckets.bucket import BucketLimits, per_minute
from kit.buckets.shared import Spending, own_buckets
from kit.db.estimates import stored
from kit.db.statements import fetch
from registrations.models import Registration
from registrations.rules import Refusal

# New installations that nobody registered for a while are saved up for as many minutes: a wave after an outage.
MINUTES_SAVED_UP = 10
NEW = b"n"  # the bucket of new installations


@dataclass(slots=True)
class Room:
    """What one batch may still add. ``active`` are the installations by key hash that can be pushed to, and ``silent``
    the new ones that are taken from the bucket already.
    """

    per_key: int
    silent: int
    spending: Spending | None
    in_all: int
    active: Counter[bytes] = field(default_factory=Counter)
    is_paced: bool = True  # the new ones are of the bucket of new installations
    added: int = 0

    def refusal(self, public_key_hash: bytes, *, is_new: bool, becomes_active: bool) -> Refusal | None:
        """Return why there is no room for an installation, or None and take the room."""
        if becomes_active and self.active[public_key_hash] >= self.per_key:
            return Refusal.TOO_MANY_INSTALLATIONS
        if is_new and self.added >= self.in_all:
            return Refusal.FULL
        if is_new and not self._take_new():
            return Refusal.TOO_MANY_NEW
        self.active[public_key_hash] += becomes_active
        return None

    def _take_new(self) -> bool:
        is_there = self.added < self.silent or bool(self.spending and self.spending.take([NEW]))
        self.added += is_there
        return is_there

    def leave(self, public_key_hash: bytes) -> None:
        """Note that an active installation of this key unregistered."""
        self.active[public_key_hash] -= 1


class RoomFor(Protocol):
    """Says what may be added by a batch that has something new about these keys."""

    def __call__(self, public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Room: ...


STORED_REGISTRATIONS: LiteralString = stored("registrations_registration")
_TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = '{Registration.State.ACTIVE}' GROUP BY 1
"""


def room_for(public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Room:
    """Return what may be added now, for a batch that has something new about these keys, and at most so many new
    installations. Belongs into the batch's transaction.
    """
    rows = fetch(_TAKEN, {"hashes": list(public_key_hashes)})
    (_, in_all), *active = rows
    spending = own_buckets().open({NEW: _limits()}, {NEW: new}, at=now)
    return Room(
        per_key=settings.INSTALLATIONS_PER_KEY,
        silent=0 if spending else new,
        spending=spending,
        in_all=settings.MAX_REGISTRATIONS - in_all,
        active=Counter(dict(active)),
    )


def room_for_import(public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Room:  # noqa: ARG001
    """Return what may be added, as `room_for` does, however many that is in a minute: an operator asks for it."""
    (_, in_all), *active = fetch(_TAKEN, {"hashes": list(public_key_hashes)})
    in_all, per_key = settings.MAX_REGISTRATIONS - in_all, settings.INSTALLATIONS_PER_KEY
    return Room(per_key, silent=new, spending=None, in_all=in_all, active=Counter(dict(active)), is_paced=False)


def take(room: Room, *, now: datetime) -> None:
    """Take what was added from the bucket of new installations, and give back what was not."""
    if not room.is_paced:
        return
    if room.spending:
        room.spending.write()
    else:
        own_buckets().give_back(NEW, _limits(), room.silent - room.added, at=now)


def _limits() -> BucketLimits:
    return per_minute(settings.NEW_INSTALLATIONS_PER_MINUTE, minutes=MINUTES_SAVED_UP)
