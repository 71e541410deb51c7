"""The limits of pushes, and the counter of pushes beyond them.

The counter has a row for each installation and UTC day, and one for all installations in each minute. Each session of
the database has rows of its own, so that no batch waits for another one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import LiteralString, NamedTuple

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit
from kit.db.statements import write
from kit.metrics import count
from notifications import metrics
from notifications.messages import Effect, PushLimit
from notifications.models import DecidedAtOnce
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


def push_limits() -> Mapping[str, BucketLimits]:
    """Return the limits of each bucket of pushes."""
    return {
        PushLimit.ADDRESS: settings.ROUTE_LIMITS,
        PushLimit.APART: APART_LIMITS,
        PushLimit.SENDER: settings.SENDER_LIMITS,
        PushLimit.SERVER: settings.GLOBAL_LIMITS,
    }


_COUNT: LiteralString = """
    INSERT INTO notifications_beyondlimit (recipient, installation_id, begin_at, effect, push_limit, count, session)
    SELECT *, pg_backend_pid()
    FROM unnest(%(recipients)b::bytea[], %(installations)b::text[], %(begins)b::timestamptz[], %(effects)b::text[],
                %(limits)b::text[], %(counts)b::integer[])
    ON CONFLICT (recipient, installation_id, begin_at, effect, push_limit, session)
    DO UPDATE SET count = notifications_beyondlimit.count + excluded.count
"""


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
        write(_COUNT, {**columns, "counts": list(rows.values())})
        count(
            metrics.BEYOND_LIMITS, {(effect, limit): n for (_, name, _, effect, limit), n in rows.items() if not name}
        )
