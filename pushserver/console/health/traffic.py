"""Counts of the last minutes, and their sums by the hour, so that pages read a few small rows and no large table.

A push counts in the minute in which its result was known, and the wait for a first push in the minute in which its POST
began. A minute is counted after its end, and once more when no push that began in it can still be in flight. Missed
minutes are counted later, the newest first.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import LiteralString

from django.conf import settings
from django.db import connection, transaction

from kit.db.base import fetch, table, write
from kit.db.clock import day_of, with_days
from notifications.messages import Outcome
from notifications.models import Channel, EndedAttempt, Notification, NotificationRequest, RefusedRequest
from pushserver.console.health.asking import MIB, volumes
from pushserver.console.health.indicators import SIZE_OF_DATABASE
from pushserver.console.models import Count, TrafficMinute
from pushserver.console.notifications.metrics import OPEN
from pushserver.console.parts import parts, parts_in_use
from registrations import messages
from registrations.messages import devices_of, sql_case, sql_with_topic

Figure = Count.Figure
OF_MINUTES = (Figure.REQUESTS, Figure.REPLIES, Figure.ATTEMPTS, Figure.ENDS, Figure.WAITS, Figure.WAITING)
# Buckets for each doubling of a time, so that the limits of a bucket are 19 % apart.
BUCKETS_PER_DOUBLING = 4
BUCKET: LiteralString = f"floor(ln(greatest(waited_ms, 1)::float8) / ln(2::float8) * {BUCKETS_PER_DOUBLING})::integer"
REQUESTS = "requests "  # before the name of a bridge, in the sums of hours
MINUTE = timedelta(minutes=1)
SHOWN = timedelta(hours=1)
# The same hour of yesterday is shown beside the last one.
DAY = timedelta(days=1)
KEPT = DAY + SHOWN + timedelta(minutes=10)
# A push that has no result when its lease ends is taken over.
SETTLED_AFTER = timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)
# Only the claim of an attempt is in an index. What began or ended in a minute was claimed this long before it at most.
CLAIMED_BEFORE = 2 * SETTLED_AFTER
CLAIMED = "attempt.started_at >= %(claimed)s AND attempt.started_at < %(end)s"

COUNT_TRAFFIC = f"""
    WITH refused AS (
        SELECT bridge FROM {table(RefusedRequest)} WHERE received_at >= %(begin)s AND received_at < %(end)s
    ), requests AS (
        SELECT bridge, count(*) AS number FROM (
            SELECT bridge FROM notifications_notificationrequest
            WHERE received_at >= %(begin)s AND received_at < %(end)s AND ended_on >= %(since)s
            UNION ALL SELECT bridge FROM refused
        ) AS each GROUP BY bridge
    ), replies AS ({{replies}}
        UNION ALL SELECT bridge, NULL FROM refused  -- a reply that is confirmed leaves no row
    ), by_bridge AS (
        INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
        SELECT '{Figure.REQUESTS}', %(begin)s, bridge, '', '', number FROM requests
        UNION ALL SELECT '{Figure.REPLIES}', %(begin)s, bridge, '', '', count(*) FROM replies GROUP BY bridge
        ON CONFLICT (figure, begin_at, subject, outcome, code) DO UPDATE SET count = excluded.count
    )
    INSERT INTO pushserver_trafficminute
        (begin_at, counted_at, request_count, reply_count, reply_p50_ms, reply_p95_ms)
    SELECT %(begin)s, %(now)s, (SELECT coalesce(sum(number), 0) FROM requests), sent.number,
        round(sent.ms[1]), round(sent.ms[2])
    FROM (
        SELECT count(*) AS number,
            percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ms) FILTER (WHERE ms IS NOT NULL) AS ms
        FROM replies
    ) AS sent
    ON CONFLICT (begin_at) DO UPDATE SET
        (counted_at, request_count, reply_count, reply_p50_ms, reply_p95_ms) =
        (excluded.counted_at, excluded.request_count, excluded.reply_count,
         excluded.reply_p50_ms, excluded.reply_p95_ms)
"""
NO_REPLIES = "SELECT '' AS bridge, 0.0 AS ms WHERE FALSE"
COUNT_ATTEMPTS = f"""
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT '{Figure.ATTEMPTS}', %(begin)s,
        {{name}} || CASE WHEN attempt.token_type IN {{with_topic}}
            THEN ' ' || coalesce(channel.app_topic, 'of apps that nothing was delivered to') ELSE '' END,
        outcome, code, count(*)
    FROM {table(EndedAttempt)} AS attempt
    LEFT JOIN {table(Channel)} AS channel ON attempt.token_type IN {{with_topic}}
        AND channel.token_type = attempt.token_type AND channel.app_topic = attempt.app_topic
    WHERE {CLAIMED} AND ended_at >= %(begin)s AND ended_at < %(end)s AND outcome IS NOT NULL
    GROUP BY 3, outcome, code
"""
# A minute without a delivery has a row that says so.
COUNT_ENDS = f"""
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT '{Figure.ENDS}', %(begin)s, '', state, '', count(*) FROM notifications_notification
    WHERE finished_at >= %(begin)s AND finished_at < %(end)s AND ended_on = %(day)s
        AND state IN ('{Notification.State.DEAD_TOKEN}', '{Notification.State.UNDELIVERABLE}',
            '{Notification.State.UNCONFIRMED}', '{Notification.State.EXPIRED}', '{Notification.State.WITHDRAWN}',
            '{Notification.State.COALESCED}')
    GROUP BY state
    UNION ALL
    SELECT '{Figure.ENDS}', %(begin)s, '', '{Notification.State.DELIVERED}', '', count(*)
    FROM {table(EndedAttempt)} AS attempt
    WHERE {CLAIMED} AND ended_at >= %(begin)s AND ended_at < %(end)s AND outcome = '{Outcome.DELIVERED}'
    UNION ALL
    SELECT '{Figure.WAITS}', %(begin)s, '', '', {BUCKET}::text, count(*) FROM {table(EndedAttempt)} AS attempt
    WHERE {CLAIMED} AND began_at >= %(begin)s AND began_at < %(end)s AND waited_ms IS NOT NULL GROUP BY 5
"""
# Counted soon after the minute, or never. The gauge stops counting at 100 000.
COUNT_WAITING = f"""
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT '{Figure.WAITING}', %(begin)s, '', '', '', sum(number) FROM ({OPEN.sql}) AS open (state, number)
    ON CONFLICT (figure, begin_at, subject, outcome, code) DO NOTHING
"""


def count_owed(*, now: datetime) -> Iterator[int]:
    """Count each minute that is owed, and yield 1 for each. Then delete minutes older than KEPT."""
    for begin_at in _owed(now):
        count(begin_at, now=now)
        yield 1
    for counts in (TrafficMinute.objects, Count.objects.filter(figure__in=OF_MINUTES)):
        counts.filter(begin_at__lt=now - KEPT).delete()


@transaction.atomic
def count(begin_at: datetime, *, now: datetime) -> None:
    """Count one whole minute.

    Counting again replaces the figures. The row of the minute makes concurrent counts wait for each other.
    """
    # The partition that is read. Nothing of the minute ended before it, unless the clock was set back.
    day = day_of(begin_at)
    times = {"begin": begin_at, "end": begin_at + MINUTE, "claimed": begin_at - CLAIMED_BEFORE, "now": now}
    values = {**times, "day": day, "since": day - DAY}
    with connection.cursor() as cursor:
        cursor.execute(with_days(_count_traffic(), begin_at), values)
        # The outcome of an attempt may have changed, by a late answer after the loss of its worker.
        Count.objects.filter(figure__in=(Figure.ATTEMPTS, Figure.ENDS, Figure.WAITS), begin_at=begin_at).delete()
        cursor.execute(_count_attempts(), values)
        cursor.execute(COUNT_ENDS, values)
        if now < begin_at + 2 * MINUTE:
            cursor.execute(COUNT_WAITING, values)


def _count_traffic() -> str:
    """Return the statement with the replies of all bridges."""
    sent = [f"SELECT '{part.name}' AS bridge, ms FROM ({part.replies}) AS sent" for part in parts() if part.replies]
    return COUNT_TRAFFIC.replace("{replies}", " UNION ALL ".join(sent) or NO_REPLIES)


def _count_attempts() -> str:
    """Return the statement with the names of the token types."""
    name = sql_case("attempt.token_type", messages.token_type_choices(), "other")
    return COUNT_ATTEMPTS.replace("{name}", name).replace("{with_topic}", sql_with_topic())


def minutes(now: datetime) -> list[datetime]:
    """Return the beginnings of the last sixty complete minutes, oldest first."""
    end = now.replace(second=0, microsecond=0)
    return [end - number * MINUTE for number in range(SHOWN // MINUTE, 0, -1)]


def _owed(now: datetime) -> list[datetime]:
    """Return the minutes that are not counted yet, or have to be counted again, newest first."""
    born_at = _born_at(now)
    shown = [begin_at for begin_at in minutes(now) if begin_at + MINUTE > born_at]
    if not shown:
        return []
    counted = TrafficMinute.objects.filter(begin_at__gte=shown[0]).values_list("begin_at", "counted_at")
    counted_at = dict(counted)
    return [begin_at for begin_at in reversed(shown) if _is_owed(begin_at, counted_at.get(begin_at), now)]


def _born_at(now: datetime) -> datetime:
    """Return the time of the first request or count. Minutes before it are unknown, and not zero."""
    counted = TrafficMinute.objects.order_by("begin_at").values_list("begin_at", flat=True).first()
    if counted and counted <= now - SHOWN:
        return counted  # without a read of requests, which an old snapshot can make slow
    asked = NotificationRequest.objects.order_by("received_at").values_list("received_at", flat=True).first()
    return min(counted or now - MINUTE, asked or now - MINUTE)


def _is_owed(begin_at: datetime, counted_at: datetime | None, now: datetime) -> bool:
    settled_at = begin_at + MINUTE + SETTLED_AFTER
    return counted_at is None or counted_at < settled_at <= now


# Hours ----------------------------------------------------------------------------------------------------------------
# Sums of each whole hour, as the usual figures of an hour of the day: requests of each bridge, and delivered pushes to
# each kind of device. With the newest hour, the free space of volumes and the size of the database are noted in MiB.
# The name of a flow is what it counts: `requests waku`, `pushes iPhone`, `free PostgreSQL`, `size database`.
HOURS_KEPT = timedelta(weeks=5)
# After this time the last minute of an hour has been counted twice.
HOUR_SETTLED_AFTER = timedelta(minutes=5)
OF_HOURS = (Figure.HOUR, Figure.HOUR_ENDS, Figure.HOUR_WAITS, Figure.HOUR_WAITING)
# An hour with minutes that were not counted is left out, because its sum is unknown.
_ADD_UP: LiteralString = f"""
    WITH hours AS (
        SELECT date_trunc('hour', begin_at, 'UTC') AS hour_at FROM pushserver_trafficminute
        WHERE begin_at < date_trunc('hour', %(settled)s::timestamptz, 'UTC') AND begin_at >= coalesce((
            SELECT max(begin_at) + interval '1 hour' FROM pushserver_count WHERE figure = '{Figure.HOUR}'), '-infinity')
        GROUP BY 1 HAVING count(*) = 60
    )
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT '{Figure.HOUR}', hour_at, flow, '', '', (
        SELECT coalesce(sum(count), 0) FROM pushserver_count WHERE figure = '{Figure.REQUESTS}'
            AND begin_at >= hour_at AND begin_at < hour_at + interval '1 hour' AND subject = name)
    FROM hours, unnest(%(bridge_flows)s::text[], %(bridges)s::text[]) AS bridge_flow (flow, name)
    UNION ALL
    SELECT '{Figure.HOUR}', hour_at, flow, '', '', sum((
        SELECT coalesce(sum(count), 0) FROM pushserver_count WHERE figure = '{Figure.ATTEMPTS}'
            AND begin_at >= hour_at AND begin_at < hour_at + interval '1 hour' AND outcome = '{Outcome.DELIVERED}'
            AND (subject = name OR starts_with(subject, name || ' '))))
    FROM hours, unnest(%(device_flows)s::text[], %(kinds)s::text[]) AS device_flow (flow, name)
    GROUP BY hour_at, flow
    UNION ALL
    SELECT '{Figure.HOUR}', max(hour_at), flow, '', '', mib FROM hours, unnest(
        %(volume_flows)s::text[] || '{SIZE_OF_DATABASE}'::text,
        %(free_mib)s::integer[] || (pg_database_size(current_database()) / {MIB})::integer) AS space (flow, mib)
    GROUP BY flow, mib
    UNION ALL
    SELECT 'hour ' || figure, hour_at, '', outcome, code,
        CASE figure WHEN '{Figure.WAITING}' THEN max(count) ELSE sum(count) END
    FROM hours JOIN pushserver_count ON begin_at >= hour_at AND begin_at < hour_at + interval '1 hour'
        AND figure IN ('{Figure.ENDS}', '{Figure.WAITS}', '{Figure.WAITING}')
    GROUP BY hour_at, figure, outcome, code
    ON CONFLICT (figure, begin_at, subject, outcome, code) DO NOTHING
"""
_USUAL: LiteralString = f"""
    SELECT subject, array_agg(count ORDER BY count) FROM pushserver_count
    WHERE figure = '{Figure.HOUR}' AND begin_at = ANY(%(hours)s)
        AND subject <> '{SIZE_OF_DATABASE}' AND NOT starts_with(subject, 'free ')
    GROUP BY subject
"""


def requests_of(bridge: str) -> str:
    """Return the name of the flow of requests that come by a bridge."""
    return f"{REQUESTS}{bridge}"


def pushes_to(devices: str) -> str:
    """Return the name of the flow of pushes to a kind of device."""
    return f"pushes {devices}"


def kinds_of_devices() -> Mapping[str, Sequence[str]]:
    """Return the kinds of devices, each with the names of its kinds of tokens."""
    found: dict[str, list[str]] = {}
    for kind in messages.token_kinds():
        found.setdefault(devices_of(kind.number), []).append(kind.name)
    return found


def add_up(*, now: datetime) -> None:
    """Store the sums of whole hours whose minutes have all been counted. Delete sums older than HOURS_KEPT."""
    bridges = [part.name for part in parts_in_use() if part.is_bridge]
    kinds = [(devices, name) for devices, names in kinds_of_devices().items() for name in names]
    seen = volumes()
    write(
        _ADD_UP,
        {
            "settled": now - HOUR_SETTLED_AFTER,
            "bridge_flows": [requests_of(bridge) for bridge in bridges],
            "bridges": bridges,
            "device_flows": [pushes_to(devices) for devices, _ in kinds],
            "kinds": [name for _, name in kinds],
            "volume_flows": [volume.flow for volume in seen],
            "free_mib": [volume.free_mib for volume in seen],
        },
    )
    Count.objects.filter(figure__in=OF_HOURS, begin_at__lt=now - HOURS_KEPT - SHOWN).delete()


def read_usual(at: datetime) -> Mapping[str, Sequence[int]]:
    """Return the sums of each flow in this hour of the other days, in ascending order."""
    begin_at = at.replace(minute=0, second=0, microsecond=0)
    days = range(1, HOURS_KEPT // timedelta(days=1) + 1)
    return dict(fetch(_USUAL, {"hours": [begin_at - timedelta(days=day) for day in days]}))
