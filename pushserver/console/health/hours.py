"""Sums of each whole hour, as the usual figures of an hour of the day: requests of each bridge, and delivered pushes to
each kind of device. With the newest hour, the free space of volumes and the size of the database are noted in MiB.

The name of a flow is what it counts: `requests waku`, `pushes iPhone`, `free PostgreSQL`, `size database`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import LiteralString

from kit.db.base import fetch, write
from notifications.messages import Outcome
from pushserver.console.health.space import SIZE_OF_DATABASE
from pushserver.console.health.volumes import MIB, volumes
from pushserver.console.models import Count
from pushserver.console.parts import parts_in_use
from registrations import messages
from registrations.messages import devices_of

HOUR = timedelta(hours=1)
KEPT = timedelta(weeks=5)
# After this time the last minute of an hour has been counted twice.
SETTLED_AFTER = timedelta(minutes=5)
_HOUR = Count.Figure.HOUR
OF_HOURS = (_HOUR, Count.Figure.HOUR_ENDS, Count.Figure.HOUR_WAITS, Count.Figure.HOUR_WAITING)
# An hour with minutes that were not counted is left out, because its sum is unknown.
_ADD_UP: LiteralString = f"""
    WITH hours AS (
        SELECT date_trunc('hour', begin_at, 'UTC') AS hour_at FROM pushserver_trafficminute
        WHERE begin_at < date_trunc('hour', %(settled)s::timestamptz, 'UTC') AND begin_at >= coalesce(
            (SELECT max(begin_at) + interval '1 hour' FROM pushserver_count WHERE figure = '{_HOUR}'), '-infinity')
        GROUP BY 1 HAVING count(*) = 60
    )
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT '{_HOUR}', hour_at, flow, '', '', (
        SELECT coalesce(sum(count), 0) FROM pushserver_count WHERE figure = '{Count.Figure.REQUESTS}'
            AND begin_at >= hour_at AND begin_at < hour_at + interval '1 hour' AND subject = name)
    FROM hours, unnest(%(bridge_flows)s::text[], %(bridges)s::text[]) AS bridge_flow (flow, name)
    UNION ALL
    SELECT '{_HOUR}', hour_at, flow, '', '', sum((
        SELECT coalesce(sum(count), 0) FROM pushserver_count WHERE figure = '{Count.Figure.ATTEMPTS}'
            AND begin_at >= hour_at AND begin_at < hour_at + interval '1 hour' AND outcome = '{Outcome.DELIVERED}'
            AND (subject = name OR starts_with(subject, name || ' '))))
    FROM hours, unnest(%(device_flows)s::text[], %(kinds)s::text[]) AS device_flow (flow, name)
    GROUP BY hour_at, flow
    UNION ALL
    SELECT '{_HOUR}', max(hour_at), flow, '', '', mib FROM hours, unnest(
        %(volume_flows)s::text[] || '{SIZE_OF_DATABASE}'::text,
        %(free_mib)s::integer[] || (pg_database_size(current_database()) / {MIB})::integer) AS space (flow, mib)
    GROUP BY flow, mib
    UNION ALL
    SELECT 'hour ' || figure, hour_at, '', outcome, code,
        CASE figure WHEN '{Count.Figure.WAITING}' THEN max(count) ELSE sum(count) END
    FROM hours JOIN pushserver_count ON begin_at >= hour_at AND begin_at < hour_at + interval '1 hour'
        AND figure IN ('{Count.Figure.ENDS}', '{Count.Figure.WAITS}', '{Count.Figure.WAITING}')
    GROUP BY hour_at, figure, outcome, code
    ON CONFLICT (figure, begin_at, subject, outcome, code) DO NOTHING
"""
_USUAL: LiteralString = f"""
    SELECT subject, array_agg(count ORDER BY count) FROM pushserver_count
    WHERE figure = '{_HOUR}' AND begin_at = ANY(%(hours)s)
        AND subject <> '{SIZE_OF_DATABASE}' AND NOT starts_with(subject, 'free ')
    GROUP BY subject
"""


def requests_of(bridge: str) -> str:
    """Return the name of the flow of requests that come by a bridge."""
    return f"requests {bridge}"


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
    """Store the sums of whole hours whose minutes have all been counted. Delete sums older than KEPT."""
    bridges = [part.name for part in parts_in_use() if part.is_bridge]
    kinds = [(devices, name) for devices, names in kinds_of_devices().items() for name in names]
    seen = volumes()
    write(
        _ADD_UP,
        {
            "settled": now - SETTLED_AFTER,
            "bridge_flows": [requests_of(bridge) for bridge in bridges],
            "bridges": bridges,
            "device_flows": [pushes_to(devices) for devices, _ in kinds],
            "kinds": [name for _, name in kinds],
            "volume_flows": [volume.flow for volume in seen],
            "free_mib": [volume.free_mib for volume in seen],
        },
    )
    Count.objects.filter(figure__in=OF_HOURS, begin_at__lt=now - KEPT - HOUR).delete()


def read_usual(at: datetime) -> Mapping[str, Sequence[int]]:
    """Return the sums of each flow in this hour of the other days, in ascending order."""
    begin_at = at.replace(minute=0, second=0, microsecond=0)
    days = range(1, KEPT // timedelta(days=1) + 1)
    return dict(fetch(_USUAL, {"hours": [begin_at - timedelta(days=day) for day in days]}))
