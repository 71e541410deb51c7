"""Quotas of registrations: installations per key, new installations per minute, and all registrations.

Anybody can make keys, and each new registration costs rows that stay. So only new installations are limited. Known
installations can always be refreshed, changed and unregistered.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit
from kit.buckets.shared import own_buckets
from kit.db.statements import fetch
from registrations.models import Registration
from registrations.registering.pairs import InstallationKey
from registrations.rules import INSTALLATIONS_PER_KEY, Refusal, limits_of_new
from registrations.upkeep.estimates import STORED_REGISTRATIONS, STORED_TOMBSTONES

NEW = b"n"  # key of the bucket of new installations
# Anybody can unregister an unknown installation, which leaves a tombstone. There may be this share of MAX_REGISTRATIONS
# of them. The unregistration of a known installation is never refused for it.
TOMBSTONE_SHARE = 0.25
TOMBSTONES: LiteralString = "tombstones"  # a key beside the hashes of keys
# Registrations of one installation. A client sends one for each chat that is muted, and repeats unanswered ones.
CHANGES: BucketLimits = (Limit(30, 900.0),)

VersionOf = tuple[InstallationKey, int]  # an installation, and the version of its registration


class Changes:
    """The quota of registrations per installation, for one batch.

    Registrations are public, and anybody can record and repeat one. So registrations without a newer version have a
    bucket of their own, and only the owner of a key can spend from the bucket of newer ones.
    """

    def __init__(self, known: Mapping[InstallationKey, int], *, now: datetime) -> None:
        self._newest = dict(known)
        self._now = now

    def take(self, key: InstallationKey, version: int) -> bool:
        """Count a registration of an installation, and return whether it is within the quota."""
        return own_buckets().take([(self._bucket_of(key, version), CHANGES)], now=self._now)

    def _bucket_of(self, key: InstallationKey, version: int) -> bytes:
        public_key_hash, installation_id = key
        is_news = version > self._newest.get(key, 0)
        if is_news:
            self._newest[key] = version
        return (b"i" if is_news else b"j") + hashlib.sha256(public_key_hash + installation_id.encode()).digest()[:16]


@dataclass(slots=True)
class Capacity:
    """The quotas that are left for one batch.

    ``active`` is the number of active installations by key hash. ``registrations`` and ``tombstones`` are the numbers
    that may be added of each, and ``rows`` is the number of new rows that may become registrations. The limit of new
    installations per minute applies at ``paced_at``, and not at all without it.
    """

    paced_at: datetime | None
    registrations: int
    tombstones: int
    rows: int
    active: Counter[bytes]
    ended: int = 0

    def refusal(self, public_key_hash: bytes, *, is_new: bool, becomes_active: bool) -> Refusal | None:
        """Return the exceeded quota of an installation, or count the installation and return None."""
        if becomes_active and self.active[public_key_hash] >= INSTALLATIONS_PER_KEY:
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
        if comes_back and self.ended:  # it takes the place of one that ended in this batch
            self.ended -= 1
            return True
        return not self.paced_at or own_buckets().take([(NEW, _limits())], now=self.paced_at)

    def leave(self, public_key_hash: bytes) -> None:
        """Count the end of an active installation of this key."""
        self.active[public_key_hash] -= 1
        self.ended += 1


_TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT '{TOMBSTONES}'::bytea, {STORED_TOMBSTONES}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = '{Registration.State.ACTIVE}' GROUP BY 1
"""


def filled(registrations: int, tombstones: int) -> int:
    """Return the used part of MAX_REGISTRATIONS: the registrations, and the tombstones beyond their share.

    Otherwise somebody could fill the disk by registering and unregistering new installations.
    """
    return registrations + max(0, tombstones - _max_tombstones())


def _max_tombstones() -> int:
    return round(TOMBSTONE_SHARE * settings.MAX_REGISTRATIONS)


def capacity_for(public_key_hashes: Collection[bytes], *, paced_at: datetime | None) -> Capacity:
    """Return the quotas that are left for a batch with new installations of these keys.

    Call it in the batch's transaction.
    """
    taken = {bytes(name): count for name, count in fetch(_TAKEN, {"hashes": list(public_key_hashes)})}
    registrations, tombstones = taken.pop(b""), taken.pop(TOMBSTONES.encode())
    return Capacity(
        paced_at=paced_at,
        registrations=settings.MAX_REGISTRATIONS - registrations,
        rows=settings.MAX_REGISTRATIONS - filled(registrations, tombstones),
        tombstones=_max_tombstones() - tombstones,
        active=Counter(taken),
    )


def _limits() -> BucketLimits:
    return limits_of_new(settings.NEW_INSTALLATIONS_PER_MINUTE)
