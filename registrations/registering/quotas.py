"""How much may be registered: so many installations of one key, so many new ones a minute, so many in all.

Anybody can make keys, and each new registration costs rows that stay. So what is new is limited; what is known already
is refreshed, changed and unregistered whatever else goes on.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import LiteralString, Protocol

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit, per_minute
from kit.buckets.shared import Spending, own_buckets
from kit.db.statements import fetch
from registrations.models import Registration
from registrations.registering.pairs import InstallationKey
from registrations.rules import INSTALLATIONS_PER_KEY, Refusal
from registrations.upkeep.estimates import STORED_REGISTRATIONS, STORED_TOMBSTONES

# New installations that nobody registered for a while are saved up for as many minutes: a wave after an outage.
MINUTES_SAVED_UP = 10
DAY_SECONDS = 86_400.0
# A wave of a day is taken in, and not twice as many as there are in weeks.
MINUTES_WORTH_A_DAY = 84
NEW = b"n"  # the bucket of new installations
# Anybody can unregister what we do not know, which leaves a row, too. There may be so many of these as a part of
# MAX_REGISTRATIONS. What is unregistered of what we know is not refused for it.
TOMBSTONE_SHARE = 0.25
TOMBSTONES: LiteralString = "tombstones"  # beside the hashes of keys
# How often one installation may say something: a client does with each chat that is muted, and repeats what was not
# answered.
CHANGES: BucketLimits = (Limit(30, 900.0),)


VersionOf = tuple[InstallationKey, int]  # an installation and the version of what it says


class Changes:
    """What the installations of a batch may still say. Each is given with its version, in the order of the batch.

    Registrations are public, and whoever recorded one may say it again and again. So what brings no newer version has a
    bucket of its own, and only the owner of a key takes from that of what is new.
    """

    def __init__(self, versions: Sequence[VersionOf], known: Mapping[InstallationKey, int], *, now: datetime) -> None:
        self._newest = dict(known)
        names = [self._bucket_of(*each) for each in versions]
        self._newest = dict(known)
        self._spending = own_buckets().open(dict.fromkeys(names, CHANGES), Counter(names), at=now)

    def take(self, key: InstallationKey, version: int) -> bool:
        """Return whether an installation may say something, and count it."""
        return self._spending.take([self._bucket_of(key, version)])

    def write(self) -> None:
        """Store what was said beyond the silent share."""
        self._spending.write()

    def _bucket_of(self, key: InstallationKey, version: int) -> bytes:
        public_key_hash, installation_id = key
        is_news = version > self._newest.get(key, 0)
        if is_news:
            self._newest[key] = version
        return (b"i" if is_news else b"j") + hashlib.sha256(public_key_hash + installation_id.encode()).digest()[:16]


@dataclass(slots=True)
class Capacity:
    """What one batch may still add. ``active`` are the installations by key hash that can be pushed to, and ``silent``
    the new ones that are taken from the bucket already. ``registrations`` and ``tombstones`` are how many more there
    may be of each, and ``rows`` how many new ones may become registrations.
    """

    per_key: int
    silent: int
    spending: Spending | None
    registrations: int
    tombstones: int
    rows: int
    active: Counter[bytes] = field(default_factory=Counter)
    is_paced: bool = True  # the new ones are of the bucket of new installations
    added: int = 0
    ended: int = 0

    def refusal(self, public_key_hash: bytes, *, is_new: bool, becomes_active: bool) -> Refusal | None:
        """Return why there is no room for an installation, or None and take the room."""
        if becomes_active and self.active[public_key_hash] >= self.per_key:
            return Refusal.TOO_MANY_INSTALLATIONS
        becomes_tombstone = is_new and not becomes_active
        is_full = (
            (becomes_active and self.registrations <= 0)
            or (becomes_tombstone and self.tombstones <= 0)
            or (is_new and not becomes_tombstone and self.rows <= 0)
        )
        if is_full:
            return Refusal.FULL
        if (is_new or becomes_active) and not self._take_new(comes_back=not is_new):
            return Refusal.TOO_MANY_NEW
        self.active[public_key_hash] += becomes_active
        self.registrations -= becomes_active
        self.tombstones -= becomes_tombstone
        self.rows -= is_new and not becomes_tombstone
        return None

    def _take_new(self, *, comes_back: bool) -> bool:
        if comes_back and self.ended:  # in the place of one that ended in this batch
            self.ended -= 1
            return True
        is_there = self.added < self.silent or bool(self.spending and self.spending.take([NEW]))
        self.added += is_there
        return is_there

    def leave(self, public_key_hash: bytes) -> None:
        """Note that an active installation of this key unregistered."""
        self.active[public_key_hash] -= 1
        self.ended += 1


class CapacityFor(Protocol):
    """Says what may be added by a batch that has something new about these keys."""

    def __call__(self, public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Capacity: ...


_TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT '{TOMBSTONES}'::bytea, {STORED_TOMBSTONES}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = '{Registration.State.ACTIVE}' GROUP BY 1
"""


def filled(registrations: int, tombstones: int) -> int:
    """Return how much of MAX_REGISTRATIONS is taken. What tombstones have beyond their share is taken, too, or who
    registers and unregisters new installations would fill the disk unseen.
    """
    return registrations + max(0, tombstones - _max_tombstones())


def _max_tombstones() -> int:
    return round(TOMBSTONE_SHARE * settings.MAX_REGISTRATIONS)


def capacity_for(public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Capacity:
    """Return what may be added now, for a batch that has something new about these keys, and at most so many new
    installations. Belongs into the batch's transaction.
    """
    capacity = capacity_for_import(public_key_hashes, new, now=now)
    capacity.spending = own_buckets().open({NEW: _limits()}, {NEW: new}, at=now)
    capacity.silent = 0 if capacity.spending else new
    capacity.is_paced = True
    return capacity


def capacity_for_import(public_key_hashes: Collection[bytes], new: int, *, now: datetime) -> Capacity:  # noqa: ARG001
    """Return what may be added, as `capacity_for` does, however many that is in a minute: an operator asks for it."""
    taken = {bytes(name): count for name, count in fetch(_TAKEN, {"hashes": list(public_key_hashes)})}
    registrations, tombstones = taken.pop(b""), taken.pop(TOMBSTONES.encode())
    return Capacity(
        per_key=INSTALLATIONS_PER_KEY,
        silent=new,
        spending=None,
        registrations=settings.MAX_REGISTRATIONS - registrations,
        rows=settings.MAX_REGISTRATIONS - filled(registrations, tombstones),
        tombstones=_max_tombstones() - tombstones,
        active=Counter(taken),
        is_paced=False,
    )


def take(capacity: Capacity, *, now: datetime) -> None:
    """Take what was added from the bucket of new installations, and give back what was not."""
    if not capacity.is_paced:
        return
    if capacity.spending:
        capacity.spending.write()
    else:
        own_buckets().give_back(NEW, _limits(), capacity.silent - capacity.added, at=now)


def _limits() -> BucketLimits:
    burst = per_minute(settings.NEW_INSTALLATIONS_PER_MINUTE, minutes=MINUTES_SAVED_UP)
    return (*burst, Limit(new_per_day(), DAY_SECONDS))


def new_per_day() -> int:
    """Return how many installations and devices that nobody knew before are taken in a day."""
    return MINUTES_WORTH_A_DAY * int(settings.NEW_INSTALLATIONS_PER_MINUTE)
