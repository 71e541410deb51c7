"""Quotas of registrations: installations per key, new installations per minute, and all registrations.

Anybody can make keys, and each new registration costs rows that stay. So only new installations are limited. Known ones
can always be refreshed, changed and unregistered.

In a full table, a limit of new rows in a time would be used up by the sender that makes most of them, and all others
would wait. Instead a new route takes the place of a disabled one, or else of one to which nothing was ever delivered: a
random one of the hour of registration with most such routes. So made-up installations replace each other, and an hour
without them loses none. The fullest hour is that of a random sample, as counting a million routes would take longer
than a batch. A table with fewer routes than the sample is counted. See docs/limits.md.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit, per_minute
from kit.buckets.shared import own_buckets
from kit.db.base import fetch, write
from registrations import statements
from registrations.messages import InstallationKey
from registrations.models import Registration
from registrations.rules import INSTALLATIONS_PER_KEY, Refusal

NEW = b"n"  # key of the bucket of new installations
# Registrations of one installation. A client sends one for each chat that is muted, and repeats unanswered ones.
CHANGES: BucketLimits = (Limit(30, 900.0),)
SAMPLE = 1000  # routes of which the fullest hour is found
# Tombstones of installations to which nothing was ever delivered. The oldest go first.
MAX_FORGETTABLE = 100_000
# How often they are counted until all of them are replaced. A count takes some milliseconds.
COUNTS = 1000


def take_change(key: InstallationKey, *, is_newer: bool, now: datetime) -> bool:
    """Count a registration of an installation, and return whether it is within the quota.

    Registrations are public, and anybody can record and repeat one. So registrations without a newer version have a
    bucket of their own, and only the owner of a key can spend from the bucket of newer ones.
    """
    public_key_hash, installation_id = key
    digest = hashlib.sha256(public_key_hash + installation_id.encode()).digest()[:16]
    return own_buckets().take([((b"i" if is_newer else b"j") + digest, CHANGES)], now=now)


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
        pace = per_minute(settings.NEW_INSTALLATIONS_PER_MINUTE)
        if self.paced_at and not own_buckets().take([(NEW, pace)], now=self.paced_at):
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


def capacity_for(
    new: Collection[InstallationKey], known: Collection[Registration], *, bridge: str, is_paced: bool, now: datetime
) -> Capacity:
    """Return the quotas that are left for a batch with up to these ``new`` installations of a bridge.

    Call it in the batch's transaction: it locks what may go for them. The registrations ``known`` to the batch stay,
    and those that another session has locked. ``is_paced`` says that the limit per minute applies.
    """
    hashes = list({public_key_hash for public_key_hash, _ in new})
    taken = {bytes(name): count for name, count in fetch(statements.TAKEN, {"hashes": hashes})}
    free = max(0, settings.MAX_REGISTRATIONS - taken.pop(b""))
    replaceable: list[tuple[int, int]] = []
    if len(new) > free:
        staying = [registration.pk for registration in known]
        drawn = fetch(statements.DRAW, {**parameters_of(bridge, len(new) - free, now=now), "but": staying})
        replaceable = [(registration_id, route_id) for registration_id, route_id in reversed(drawn)]
    return Capacity(Counter(taken), free, replaceable, paced_at=now if is_paced else None)


def parameters_of(bridge: str, number: int, *, now: datetime) -> dict[str, Any]:
    """Return the parameters of `DRAWN`, for ``number`` routes of a bridge."""
    start = secrets.randbits(32) - 2**31
    return {"bridge": bridge, "number": number, "sample": SAMPLE, "start": start, "now": now}


def forget_oldest(added: Collection[int]) -> None:
    """Delete the oldest tombstones beyond `MAX_FORGETTABLE`, at some of the ids of those that were ``added``."""
    if any(each % max(1, MAX_FORGETTABLE // COUNTS) == 0 for each in added):
        write(statements.FORGET, [MAX_FORGETTABLE])
