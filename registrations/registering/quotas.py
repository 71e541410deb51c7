"""Quotas of registrations: installations per key, new installations per minute, and all registrations.

Anybody can make keys, and each new registration costs rows that stay. So only new installations are limited, and in a
full table the newest replace others that nothing was ever delivered to (`stock`). Known installations can always be
refreshed, changed and unregistered.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import LiteralString

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit, per_minute
from kit.buckets.shared import own_buckets
from kit.db.statements import fetch
from registrations.models import Registration
from registrations.registering.pairs import InstallationKey
from registrations.rules import INSTALLATIONS_PER_KEY, Refusal
from registrations.upkeep import stock
from registrations.upkeep.estimates import STORED_REGISTRATIONS

NEW = b"n"  # key of the bucket of new installations
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

    ``active`` is the number of active installations by key hash, ``free`` the number of registrations that may be added
    and ``replaceable`` those that may go for more, the first to go last: each with its id and that of its route.
    The limit of new installations per minute applies at ``paced_at``, and not at all without it.
    """

    active: Counter[bytes]
    free: int
    replaceable: list[tuple[int, int]]
    paced_at: datetime | None
    replaced: list[int] = field(default_factory=list)

    def admit(self, public_key_hash: bytes) -> tuple[Refusal | None, list[int]]:
        """Count one more active installation of a key, unless it exceeds a quota.

        Return the exceeded quota, if any, and the id of the route that goes for the installation, in a list.
        """
        if self.active[public_key_hash] >= INSTALLATIONS_PER_KEY:
            return Refusal.TOO_MANY_INSTALLATIONS, []
        if self.free <= 0 and not self.replaceable:
            return Refusal.FULL, []
        if self.paced_at and not own_buckets().take([(NEW, _limits())], now=self.paced_at):
            return Refusal.TOO_MANY_NEW, []
        self.active[public_key_hash] += 1
        if self.free > 0:
            self.free -= 1
            return None, []
        registration_id, route_id = self.replaceable.pop()
        self.replaced.append(registration_id)
        return None, [route_id]

    def leave(self, public_key_hash: bytes) -> None:
        """Count the end of an active installation of this key."""
        self.active[public_key_hash] -= 1
        self.free += 1


_TAKEN: LiteralString = f"""
    SELECT ''::bytea, {STORED_REGISTRATIONS}
    UNION ALL
    SELECT public_key_hash, count(*) FROM registrations_registration
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND state = '{Registration.State.ACTIVE}' GROUP BY 1
"""


def capacity_for(
    new: Collection[InstallationKey], known: Collection[Registration], *, bridge: str, is_paced: bool, now: datetime
) -> Capacity:
    """Return the quotas that are left for a batch with up to these ``new`` installations of a bridge.

    Call it in the batch's transaction. The registrations ``known`` to the batch stay. ``is_paced`` says that the limit
    per minute applies.
    """
    hashes = list({public_key_hash for public_key_hash, _ in new})
    taken = {bytes(name): count for name, count in fetch(_TAKEN, {"hashes": hashes})}
    free = max(0, settings.MAX_REGISTRATIONS - taken.pop(b""))
    staying = [registration.pk for registration in known]
    replaceable = stock.draw(bridge, len(new) - free, but=staying, now=now) if len(new) > free else []
    return Capacity(
        active=Counter(taken),
        free=free,
        replaceable=replaceable[::-1],
        paced_at=now if is_paced else None,
    )


def _limits() -> BucketLimits:
    return per_minute(settings.NEW_INSTALLATIONS_PER_MINUTE)
