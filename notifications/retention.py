"""Removing old requests with their notifications, and old attempts."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import LiteralString

from kit.db.deleting import SET_SIZE, remove
from kit.db.partitions import DayTable
from notifications.models import Notification, NotificationRequest
from notifications.storing import DIGEST_BYTES, KEY_BYTES
from notifications.transitions import DUE

ATTEMPTS = DayTable("notifications_attempt", "started_at")

# OFFSET 0 has the notifications of each request looked up by index. Where hardly anything is under way, PostgreSQL may
# otherwise read all notifications first, in every step: 2 s instead of 40 ms with 40 million of them.
_PURGE: LiteralString = f"""
    WITH old AS (
        SELECT id FROM notifications_notificationrequest AS request
        WHERE state = '{NotificationRequest.State.ANSWERED}' AND received_at < %(before)s AND NOT EXISTS (
            SELECT FROM notifications_notification
            WHERE request_id = request.id AND state = ANY (%(under_way)s::text[]) OFFSET 0
        )
        ORDER BY received_at LIMIT {SET_SIZE} FOR UPDATE SKIP LOCKED
    ), notifications AS (
        DELETE FROM notifications_notification USING old WHERE request_id = old.id
    ), requests AS (
        DELETE FROM notifications_notificationrequest AS request USING old WHERE request.id = old.id
        RETURNING front_door, request_key, received_at
    ), digests AS (
        INSERT INTO notifications_requestdigest (digest, received_at)
        SELECT substring(sha256(convert_to(front_door, 'UTF8') || '\\x00' || request_key) FOR {DIGEST_BYTES}),
               received_at
        FROM requests WHERE length(request_key) <= {KEY_BYTES} ORDER BY 1
        ON CONFLICT DO NOTHING
    )
    SELECT count(*) FROM requests
"""
_PURGE_DIGESTS: LiteralString = f"""
    WITH gone AS (
        DELETE FROM notifications_requestdigest WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM notifications_requestdigest WHERE received_at < %(before)s LIMIT {SET_SIZE}
        )) RETURNING 1
    )
    SELECT count(*) FROM gone
"""


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove answered requests older than ``keep``, but none that has a notification still under way. Of their keys,
    digests are kept.

    Yield how many requests each step removed.
    """
    under_way = [str(state) for state in (*DUE, Notification.State.IN_FLIGHT)]
    return remove(_PURGE, before=now - keep, under_way=under_way)


def purge_attempts(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Drop the days of attempts that were over ``keep`` ago, and make those that come. Yield how many rows each step
    removed, as far as that is known.
    """
    ATTEMPTS.make_ahead(now=now)
    return ATTEMPTS.drop_before(now - keep)


def purge_digests(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove the digests of requests older than ``keep``. Yield how many each step removed."""
    return remove(_PURGE_DIGESTS, before=now - keep)
