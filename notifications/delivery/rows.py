"""What delivery reads and writes by the batch, as plain rows in SQL of its own.

Building a model instance for every row, only to take it apart again, cost more CPU time than the POST itself. No
notification changes its state here: `transitions.move` is the one way for that.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from notifications.messages import ChannelKey
from notifications.transitions import DUE


class Due(NamedTuple):
    """A notification that may be tried now, and its route: all None when the recipient unregistered."""

    notification_id: int
    request_id: int
    type: int
    public_key_hash: bytes
    chat_id: bytes | None
    message: bytes | None
    dedup_key: bytes | None
    attempt_count: int
    ambiguous_count: int
    created_at: datetime
    expires_at: datetime
    route_id: int
    route_state: str | None
    route_generation: int
    token_type: int
    apn_topic: str
    device_token_encrypted: bytes


def lock_due(notification_ids: Sequence[int], *, now: datetime) -> list[Due]:
    """Those that are due and that nobody else is taking, locked until the transaction ends. None while draining."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT n.id, n.request_id, n.type, n.public_key_hash, n.chat_id, n.message, n.dedup_key,
                   n.attempt_count, n.ambiguous_count, n.created_at, n.expires_at,
                   route.id, route.state, route.generation, route.token_type, route.apn_topic,
                   route.device_token_encrypted
            FROM notifications_notification AS n
            LEFT JOIN registrations_route AS route ON route.id = n.route_id
            WHERE n.id = ANY(%s) AND n.state = ANY(%s)
                -- The first attempt is due at once, also where the clock is behind that of whoever accepted it.
                AND (n.state = 'pending' OR n.next_attempt_at <= %s)
                AND NOT EXISTS (SELECT FROM notifications_drain)
            ORDER BY n.id FOR UPDATE OF n SKIP LOCKED
            """,
            [list(notification_ids), [str(state) for state in DUE], now],
        )
        return [Due._make(row) for row in cursor.fetchall()]


class NewAttempt(NamedTuple):
    notification_id: int
    number: int
    channel: ChannelKey


def insert_attempts(attempts: Sequence[NewAttempt], *, gateway: str, started_at: datetime) -> list[int]:
    """Their ids, in the same order."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO notifications_attempt
                (notification_id, number, token_type, apn_topic, gateway, started_at, code, is_guarded)
            SELECT *, %s, %s, '', FALSE FROM unnest(%s::bigint[], %s::smallint[], %s::smallint[], %s::text[])
            RETURNING notification_id, id
            """,
            [
                gateway,
                started_at,
                [attempt.notification_id for attempt in attempts],
                [attempt.number for attempt in attempts],
                [attempt.channel.token_type for attempt in attempts],
                [attempt.channel.apn_topic for attempt in attempts],
            ],
        )
        ids = dict(cursor.fetchall())
    return [ids[attempt.notification_id] for attempt in attempts]


class AttemptResult(NamedTuple):
    attempt_id: int
    outcome: str
    code: str
    latency_ms: int
    is_guarded: bool


def complete_attempts(results: Sequence[AttemptResult]) -> None:
    if not results:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE notifications_attempt AS attempt
            SET outcome = result.outcome, code = result.code, latency_ms = result.latency_ms,
                is_guarded = result.is_guarded
            FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::integer[], %s::boolean[])
                AS result (id, outcome, code, latency_ms, is_guarded)
            WHERE attempt.id = result.id
            """,
            [list(column) for column in zip(*results, strict=True)],
        )


class Answerable(NamedTuple):
    """A request that can be answered, and where to."""

    id: int
    envelope_hash: bytes
    reply_to: bytes | None
    message_id: bytes
    received_at: datetime


def lock_answerable(request_ids: Iterable[int], *, now: datetime) -> list[Answerable]:
    """Those that wait though all their notifications were tried once, or that are due, and that nobody else answers."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT id, envelope_hash, reply_to, message_id, received_at
            FROM notifications_notificationrequest AS request
            WHERE id = ANY(%s) AND state = 'waiting' AND (reply_due_at <= %s OR NOT EXISTS (
                SELECT FROM notifications_notification AS untried
                WHERE untried.request_id = request.id
                    AND (untried.state = 'pending' OR untried.state = 'in_flight' AND untried.attempt_count = 1)
            ))
            ORDER BY id FOR UPDATE SKIP LOCKED
            """,
            [list(request_ids), now],
        )
        return [Answerable._make(row) for row in cursor.fetchall()]


def fix_reports(request_ids: Sequence[int]) -> None:
    """A dead token is told; whatever is delivered, still tried, or unknown counts as success."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE notifications_notification
            SET report = CASE state WHEN 'dead_token' THEN 'not_registered' ELSE 'success' END
            WHERE request_id = ANY(%s) AND report IS NULL
            """,
            [list(request_ids)],
        )
