"""The rows that go when a table is full: routes for new ones, and tombstones of installations that were never reached.

Anybody can make keys, so a limit of new rows in a time would be used up by the sender that makes most of them, and all
others would wait. Instead a new route takes the place of a disabled one, or else of one to which nothing was ever
delivered: a random one of the hour of registration with most such routes. So made-up installations replace each other,
and an hour without them loses none.

The fullest hour is that of a random sample, as counting a million routes would take longer than a batch. A table
with fewer routes than the sample is counted.
"""

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, LiteralString

from kit.db.statements import fetch, unindexed, write
from registrations.models import Registration, Route

# A route stays at least as long, so that a flood replaces no user who has just registered.
STAYS = timedelta(hours=1)
SAMPLE = 1000
# Routes beyond the wanted number that are drawn, because other sessions may have locked some.
SPARE = 20
# Tombstones of installations to which nothing was ever delivered. The oldest go first.
MAX_FORGETTABLE = 100_000
# How often they are counted until all of them are replaced. A count takes some milliseconds.
COUNTS = 1000

MAY_GO: LiteralString = (
    f"route.bridge = %(bridge)s AND (route.state = '{Route.State.DISABLED}' OR route.delivered_digest IS NULL)"
)
_SAMPLED: LiteralString = f"""
    SELECT id, created_at FROM registrations_route AS route
    WHERE {MAY_GO} AND route.state = '{Route.State.ACTIVE}' AND hashint8(id) {{side}} %(start)s::int
    ORDER BY hashint8(id) LIMIT %(sample)s
"""
_FROM_THERE: LiteralString = _SAMPLED.format(side=">=")
_BEFORE_IT: LiteralString = _SAMPLED.format(side="<")
# Each route gets a random place in its hour. The highest goes first, because only the fullest hour has it.
DRAWN: LiteralString = f"""
    (
        SELECT id, NULL AS place FROM registrations_route AS route
        WHERE {MAY_GO} AND route.state = '{Route.State.DISABLED}' ORDER BY hashint8(id) LIMIT %(number)s + {SPARE}
    ) UNION ALL (
        SELECT id, row_number() OVER (PARTITION BY date_trunc('hour', created_at) ORDER BY random()) AS place
        FROM (({_FROM_THERE}) UNION ALL ({_BEFORE_IT}) LIMIT %(sample)s) AS sampled
        WHERE created_at <= %(now)s::timestamptz - interval '{STAYS}' ORDER BY place DESC LIMIT %(number)s + {SPARE}
    )
"""
_DRAW: LiteralString = f"""
    SELECT registration.id, route.id FROM ({DRAWN}) AS drawn
    JOIN registrations_registration AS registration ON registration.route_id = drawn.id
    JOIN registrations_route AS route ON route.id = drawn.id
    WHERE registration.id <> ALL (%(but)b::bigint[]) AND registration.state = '{Registration.State.ACTIVE}'
        AND {MAY_GO}
    ORDER BY place DESC NULLS FIRST LIMIT %(number)s FOR UPDATE OF registration, route SKIP LOCKED
"""
# A process of the release before 0088 may have registered a tombstone again, and does not know that it is forgettable.
_FORGET: LiteralString = f"""
    WITH oldest AS MATERIALIZED (
        SELECT id FROM registrations_registration
        WHERE is_forgettable AND {unindexed("state")} = '{Registration.State.UNREGISTERED}' ORDER BY updated_at
        LIMIT least(1000, greatest(0, (
            SELECT count(*) FROM registrations_registration WHERE is_forgettable
        ) - %s))
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM registrations_registration USING oldest WHERE registrations_registration.id = oldest.id
"""


def parameters_of(bridge: str, number: int, *, now: datetime) -> dict[str, Any]:
    """Return the parameters of `DRAWN`, for ``number`` routes of a bridge."""
    start = secrets.randbits(32) - 2**31
    return {"bridge": bridge, "number": number, "sample": SAMPLE, "start": start, "now": now}


def draw(bridge: str, number: int, *, but: Collection[int], now: datetime) -> list[tuple[int, int]]:
    """Lock up to ``number`` registrations that go for new ones, and return their ids and those of their routes.

    The first of them goes first. The registrations ``but`` stay, and those that another session has locked.
    """
    return [*map(tuple, fetch(_DRAW, {**parameters_of(bridge, number, now=now), "but": list(but)}))]


def forget_oldest(added: Collection[int]) -> None:
    """Delete the oldest tombstones beyond `MAX_FORGETTABLE`, at some of the ids of those that were ``added``."""
    if any(each % max(1, MAX_FORGETTABLE // COUNTS) == 0 for each in added):
        write(_FORGET, [MAX_FORGETTABLE])
