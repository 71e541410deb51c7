"""Benchmark of retention: a month of full load, in small, and the days after it.

The target load is 1 600 requests/s. Each request leaves an envelope and a reply for three days, and a request with a
notification and an attempt for thirty. The tables are filled as after thirty days of a fraction of that. Then hours are
simulated: new rows come, and the code of production removes old ones. A purge works for half of its time. The rows that
it removes in a second, times that half, must exceed the rows that come in a second. Run alone with ``python -m bench
retention``; ``RETENTION_SCALE=100`` takes ten times the rows and the time.
"""

import os
import tempfile
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.running import servers
from bench.running.servers import cpu_seconds

AIM_PER_SECOND = 1_600
SCALE = int(os.environ.get("RETENTION_SCALE", "1000"))
HOURS = 24
FILL = """
    INSERT INTO waku_bridge_inboundenvelope (hash, pubsub_topic, content_topic, timestamp_ns, payload, state, reason,
        message_type, message_id, source, path, received_at, processed_at, ended_on)
    SELECT sha256(n::text::bytea), '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, NULL, 'processed', '', 20,
        sha256(('m' || n)::bytea), 'http://127.0.0.1:8645', 'live', {at}, {at},
        (({at}) AT TIME ZONE 'UTC')::date
        FROM generate_series(%(first)s, %(last)s) n WHERE {at} >= %(envelopes_from)s;
    INSERT INTO waku_bridge_outboundreply (envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns,
        message_hash, state, attempt_count, repeat_count, next_attempt_at, created_at, published_at, confirmed_at, node,
        ended_on)
    SELECT sha256(n::text::bytea), 0, 21, '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, sha256(('r' || n)::bytea),
        'confirmed', 1, 0, {at}, {at}, {at}, {at}, 'http://127.0.0.1:8645', (({at}) AT TIME ZONE 'UTC')::date
        FROM generate_series(%(first)s, %(last)s) n WHERE {at} >= %(envelopes_from)s;
    INSERT INTO notifications_notificationrequest (id, bridge, request_key, message_id, state, source_key,
        sender_digest, received_at, reply_due_at, answered_at, ended_on)
    SELECT n, 'waku', sha256(('m' || n)::bytea), sha256(('s' || n)::bytea), 'answered', sha256(n::text::bytea),
        sha256((n %% 50000)::text::bytea), {at}, {at}, {at}, ({at})::date FROM generate_series(%(first)s, %(last)s) n;
    INSERT INTO notifications_requestdigest (digest, received_at)
    SELECT substring(sha256('waku'::bytea || '\\x00' || sha256(('m' || n)::bytea)) FOR 16), {at}
        FROM generate_series(%(first)s, %(last)s) n;
    INSERT INTO notifications_notification (id, request_id, position, public_key_hash, installation_id, type,
        route_generation, state, report, payload_dropped, attempt_count, ambiguous_count, created_at, expires_at,
        finished_at, ended_on)
    SELECT n, n, 0, sha512((n %% 100000)::text::bytea), md5(n::text), 1, 1, 'delivered', 'success', false, 1, 0, {at},
        {at}, {at}, ({at})::date FROM generate_series(%(first)s, %(last)s) n;
    INSERT INTO notifications_attempt (notification_id, number, gateway, token_type, app_topic, started_at, latency_ms,
        outcome, code, is_guarded, late_code)
    SELECT n, 1, 'gorush', 2, '', {at}, 20, 'delivered', '', false, '' FROM generate_series(%(first)s, %(last)s) n;
""".format(at="%(begin)s::timestamptz + (n - %(zero)s) * %(step)s * interval '1 second'")


def run() -> dict[str, object]:
    """Measure, print and return the figures."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = Path(name)
        url, database = stack.enter_context(servers.postgres(folder, max_wal_size="4GB"))
        servers.set_up_django(folder, url)
        stack.callback(servers.close_connections)
        result = _measure(database)
    _print(result)
    return result


def _measure(database: psutil.Process) -> dict[str, object]:
    from django.db import connection  # noqa: PLC0415 - Django is set up only now

    per_hour = AIM_PER_SECOND * 3600 // SCALE
    now = datetime.fromisoformat("2026-01-31T00:00:00+00:00")
    make_days(now)
    fill(1, 30 * 24 * per_hour, begin=now - timedelta(days=30), now=now, per_hour=per_hour)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    removed, seconds, cpu = 0, 0.0, 0.0
    for hour in range(HOURS):
        first = (30 * 24 + hour) * per_hour + 1
        fill(first, first + per_hour - 1, begin=now, now=now, per_hour=per_hour)
        now += timedelta(hours=1)
        began, cpu_before = perf_counter(), cpu_seconds(database)
        removed += _purge(now)
        seconds += perf_counter() - began
        cpu += cpu_seconds(database) - cpu_before
    rate = removed / seconds
    return {
        "requests_in_the_tables": 30 * 24 * per_hour,
        "rows_removed": removed,
        "rows_per_second": round(rate),
        "rows_that_come_per_second": AIM_PER_SECOND,  # one digest of each request: all other tables are dropped by day
        "share_of_its_time_needed": round(AIM_PER_SECOND / rate, 3),
        "database_cpu_us_per_row": round(cpu / removed * 1e6, 1),
        "left_behind": _left_behind(now),
    }


def fill(first: int, last: int, *, begin: datetime, now: datetime, per_hour: float) -> None:
    from django.db import connection  # noqa: PLC0415 - Django is set up only now

    step = 3600 / per_hour
    envelopes_from = now - timedelta(days=3)
    with connection.cursor() as cursor:
        for start in range(first, last + 1, 200_000):
            facts: dict[str, Any] = {"begin": begin, "zero": first, "step": step, "envelopes_from": envelopes_from}
            cursor.execute(FILL, facts | {"first": start, "last": min(start + 199_999, last)})


def make_days(now: datetime) -> None:
    from django.db import transaction  # noqa: PLC0415 - Django is set up only now

    from notifications.retention import BY_DAY  # noqa: PLC0415 - as above
    from waku_bridge.removal.retention import ENVELOPES, REPLIES  # noqa: PLC0415 - as above

    with transaction.atomic():
        for table in (*BY_DAY, ENVELOPES, REPLIES):
            table.make_from(now - timedelta(days=30), to=now)


def _purge(now: datetime) -> int:
    """Remove what is too old, and return how many rows were removed one by one."""
    from notifications import retention as requests  # noqa: PLC0415 - Django is set up only now
    from waku_bridge.removal import retention as envelopes  # noqa: PLC0415 - as above

    keep = timedelta(days=30)
    for _ in chain(envelopes.purge(now=now, keep=timedelta(days=3)), requests.purge(now=now, keep=keep)):
        pass
    return sum(requests.purge_digests(now=now, keep=keep))


def _left_behind(now: datetime) -> int:
    from kit.db.statements import fetch  # noqa: PLC0415 - Django is set up only now

    [(left,)] = fetch(
        """
        SELECT (SELECT count(*) FROM waku_bridge_inboundenvelope WHERE received_at < %(now)s - interval '4 days')
             + (SELECT count(*) FROM waku_bridge_outboundreply WHERE created_at < %(now)s - interval '4 days')
             + (SELECT count(*) FROM notifications_notification WHERE finished_at < %(now)s - interval '31 days')
             + (SELECT count(*) FROM notifications_requestdigest WHERE received_at < %(now)s - interval '30 days')
             + (SELECT count(*) FROM notifications_attempt WHERE started_at < %(now)s - interval '31 days')
        """,
        {"now": now},
    )
    return int(left)


def _print(result: dict[str, object]) -> None:
    table = Table(title=f"Retention at 1:{SCALE} of {AIM_PER_SECOND} requests/s, {HOURS} hours after a month")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in result.items():
        table.add_row(name, f"{value:,}")
    Console().print(table)
