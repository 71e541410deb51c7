"""The limits of pushes, the counter of pushes beyond them, and the pushes that may wait for one address.

A push makes the phone fetch everything that waits for it, so the newest pushes that wait for an address are enough.
When a new one exceeds their limit, the oldest is left out, because it would expire first.

The counter has a row for each installation and UTC day, and one for all installations in each minute. Each session of
the database has rows of its own, so that no batch waits for another one.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from kit.buckets.bucket import BucketLimits, Limit
from kit.db.base import fetch, write
from kit.db.clock import day_of
from kit.telemetry import count
from notifications import metrics
from notifications.acceptance import statements
from notifications.messages import APART, Effect, PushLimit
from notifications.models import DecidedAtOnce, Notification
from notifications.rules.policy import Verdict

# Limits of one address for the types in `APART`. Other notifications do not use them up.
APART_LIMITS: BucketLimits = (Limit(30, 10.0), Limit(600, 3600.0))
# The effect of a limit, by the verdict on the push beyond it.
EFFECTS = {
    Verdict.COALESCED: Effect.MERGED,
    Verdict.DELIVER: Effect.SHORTENED,
    Verdict.OVERLOADED: Effect.REFUSED,
}


class Beyond(NamedTuple):
    """A push beyond a limit. ``limit`` is a `PushLimit`, or the name of a limit of a bridge.

    Without an ``installation_id`` the installation is not known, and the push counts for all together only.
    """

    public_key_hash: bytes
    installation_id: str
    effect: Effect
    limit: str


def count_beyond(pushes: Iterable[Beyond], *, now: datetime) -> None:
    """Count pushes beyond a limit, in the caller's transaction."""
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    day = minute.replace(hour=0, minute=0)
    rows: Counter[tuple[bytes, str, datetime, str, str]] = Counter()
    for key_hash, name, effect, limit in pushes:
        rows[b"", "", minute, str(effect), str(limit)] += 1
        if name:
            rows[key_hash[: DecidedAtOnce.RECIPIENT_BYTES], name, day, str(effect), str(limit)] += 1
    if rows:
        names = ("recipients", "installations", "begins", "effects", "limits")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        write(statements.COUNT_BEYOND, {**columns, "counts": list(rows.values())})
        count(
            metrics.BEYOND_LIMITS, {(effect, limit): n for (_, name, _, effect, limit), n in rows.items() if not name}
        )


# Pushes that wait for one address -------------------------------------------------------------------------------------


def find_wake_ups(route_ids: Collection[int], *, still_at: datetime) -> set[tuple[int, bool]]:
    """Return the routes with a waiting wake-up that does not expire before ``still_at``.

    The second item says whether the wake-up is for the types in `APART`.
    """
    rows = fetch(statements.FIND_WAKE_UPS, {"routes": list(route_ids), "still_at": still_at})
    return {(route_id, type_ in APART) for route_id, type_ in rows}


def leave_out_oldest(route_ids: Collection[int], *, limit: int, now: datetime) -> None:
    """Coalesce the oldest notifications of these routes, until ``limit`` of each wait."""
    if not route_ids:
        return
    values = {"routes": list(route_ids), "limit": limit, "now": now, "today": day_of(now)}
    left_out = fetch(statements.LEAVE_OUT_OLDEST, values)
    count(metrics.FINISHED, {(Notification.State.COALESCED,): len(left_out)})
    count_beyond((Beyond(key_hash, name, Effect.MERGED, PushLimit.WAITING) for key_hash, name in left_out), now=now)
