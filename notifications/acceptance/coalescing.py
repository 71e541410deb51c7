"""Coalescing: a limit on the notifications that wait for one address.

A push makes the phone fetch everything that waits for it. So the newest notifications of an address are enough. When a
new one exceeds the limit, the oldest is left out, because it would expire first.
"""

from collections.abc import Collection
from datetime import datetime
from typing import LiteralString

from kit.db.partitions import day_of
from kit.db.statements import fetch
from kit.metrics import count
from notifications.acceptance.limits import Beyond, count_beyond
from notifications.messages import APART, Effect, PushLimit
from notifications.metrics import FINISHED
from notifications.models import Notification
from notifications.rules.transitions import ending

# Notifications in flight are passed over: a worker is sending them.
_MAY_BE_LEFT_OUT: LiteralString = f"state IN ('{Notification.State.PENDING}', '{Notification.State.RETRYING}')"
_LEAVE_OUT_OLDEST: LiteralString = ending(
    f"n.id = ANY (ARRAY(SELECT id FROM locked)) AND {_MAY_BE_LEFT_OUT}",
    f"'{Notification.State.COALESCED}'",
    first=f"""
        ranked AS (
            SELECT id, row_number() OVER (PARTITION BY route_id ORDER BY id DESC) AS place
            FROM notifications_opennotification WHERE route_id = ANY (%(routes)b::bigint[]) AND {_MAY_BE_LEFT_OUT}
        ), locked AS (
            SELECT id FROM notifications_opennotification
            WHERE id = ANY (ARRAY(SELECT id FROM ranked WHERE place > %(limit)s))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ),
    """,
    returning="public_key_hash, installation_id",
)


_FIND_WAKE_UPS = f"""
    SELECT route_id, type FROM notifications_opennotification
    WHERE route_id = ANY (%(routes)b::bigint[]) AND state = '{Notification.State.PENDING}'
        AND is_wake_up AND expires_at > %(still_at)s
"""


def find_wake_ups(route_ids: Collection[int], *, still_at: datetime) -> set[tuple[int, bool]]:
    """Return the routes with a waiting wake-up that does not expire before ``still_at``.

    The second item says whether the wake-up is for the types in `APART`.
    """
    rows = fetch(_FIND_WAKE_UPS, {"routes": list(route_ids), "still_at": still_at})
    return {(route_id, type_ in APART) for route_id, type_ in rows}


def leave_out_oldest(route_ids: Collection[int], *, limit: int, now: datetime) -> None:
    """Coalesce the oldest notifications of these routes, until ``limit`` of each wait."""
    left_out = fetch(_LEAVE_OUT_OLDEST, {"routes": list(route_ids), "limit": limit, "now": now, "today": day_of(now)})
    count(FINISHED, {(Notification.State.COALESCED,): len(left_out)})
    count_beyond((Beyond(key_hash, name, Effect.MERGED, PushLimit.WAITING) for key_hash, name in left_out), now=now)
