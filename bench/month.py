"""Benchmark of the server on the tables of a month, and of growth while it runs.

The tables are filled as by thirty days of requests (``--days``), fewer than a thousand a second, as the disk permits.
Then messages come at an even rate. Meanwhile yesterday is exported repeatedly, a session keeps a snapshot open,
retention runs, and a standby follows. Each figure is taken at the beginning and at the end of that, and after ten
minutes without autovacuum. It is taken again behind two million notifications that wait in a closed queue, and when
that has opened. The table shows each figure as a multiple of the first one. A column without export, snapshot and
standby is for comparison. It takes an hour (``--minutes``) and some 10 GB (``--requests``).
"""

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, LiteralString

import psutil
import psycopg
from django.db import connection, connections, transaction

from bench.running import servers
from bench.running.fleet import Fleet, name_of
from bench.running.load import Load
from bench.running.phones import Phones
from bench.running.tables import Cell, show
from kit.batches.looking import OVERLAP
from kit.db.sessions import BATCH_WORKER, set_all
from notifications.delivery import settling
from notifications.messages import AppKey, QueueKey
from notifications.models import Channel
from notifications.queues import halts, queues
from notifications.queues.queues import IS_DUE, IS_EXPIRED
from notifications.retention import BY_DAY
from registrations.models import Route
from spark_reports.export.days import export_day
from spark_reports.lake import Lake
from waku_bridge.inbox.steps import Inbox
from waku_bridge.outbound.outbox import OLDEST_DUE as OLDEST_REPLY
from waku_bridge.tasks import ENVELOPES, REPLIES

RATE, CHUNK_SECONDS = 200, 60
PHONES = RATE * CHUNK_SECONDS  # each gets one push in a chunk: a second one would be coalesced with a late first one
GOAL, SCANS = 1.2, 20
# In the tables of the month, only what this run published is counted. Counting all of it would cost more than the
# messages. A closed queue never empties, so what is open is not waited for.
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL AND id > {last_id}"
NOT_WAITED_FOR = "SELECT 0"
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"
LOOKS = {"inbox": Inbox.oldest, "replies": OLDEST_REPLY, "due": f"SELECT EXISTS ({IS_DUE})"}
LOOKS |= {"expired": f"SELECT EXISTS ({IS_EXPIRED})", "overdue": settling.OVERDUE}

# The rows of the month have ids from here on. Those of the run itself come after them.
FIRST_ID, CHUNK = 1_000_000, 200_000
FILL = """
    CREATE TEMP TABLE made AS SELECT n, %(begin)s::timestamptz + (n - %(zero)s) * %(step)s::interval AS at
        FROM generate_series(%(first)s, %(last)s) AS n;
    INSERT INTO waku_bridge_endedenvelope (hash, pubsub_topic, content_topic, timestamp_ns, state, reason, source,
        path, message_type, message_id, received_at, processed_at, ended_on)
    SELECT sha256(n::text::bytea), '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, 'processed', '', 'bench', 'live',
        20, sha256(('m' || n)::bytea), at, at, (at AT TIME ZONE 'UTC')::date FROM made WHERE at >= %(envelopes_from)s;
    INSERT INTO waku_bridge_endedreply (envelope_hash, part, message_type, pubsub_topic, content_topic, timestamp_ns,
        message_hash, state, attempt_count, repeat_count, created_at, published_at, confirmed_at, node, ended_on)
    SELECT sha256(n::text::bytea), 0, 21, '/waku/2/rs/16/32', '/waku/1/0x01020304/rfc26', 0, sha256(('r' || n)::bytea),
        'confirmed', 1, 0, at, at, at, 'bench', (at AT TIME ZONE 'UTC')::date FROM made
        WHERE at >= %(envelopes_from)s;
    INSERT INTO notifications_answeredrequest (id, bridge, request_key, message_id, source_key,
        sender_digest, received_at, reply_due_at, answered_at, ended_on)
    SELECT n, 'waku', sha256(('m' || n)::bytea), sha256(('s' || n)::bytea), sha256(n::text::bytea),
        sha256((n %% 50000)::text::bytea), at, at, at, at::date FROM made;
    INSERT INTO notifications_requestdigest (digest, received_at)
    SELECT substring(sha256('waku'::bytea || '\\x00' || sha256(('m' || n)::bytea)) FOR 16), at FROM made;
    INSERT INTO notifications_endednotification (id, request_id, position, public_key_hash, installation_id, type,
        state, route_generation, report, payload_dropped, attempt_count, ambiguous_count, created_at, expires_at,
        finished_at, ended_on)
    SELECT n, n, 0, sha512((n %% 100000)::text::bytea), md5(n::text), 1, 'delivered', 1, 'success', false, 1, 0, at, at,
        at, at::date FROM made;
    INSERT INTO notifications_endedattempt (notification_id, number, gateway, token_type, app_topic, started_at,
        latency_ms, outcome, code, is_guarded, late_code)
    SELECT n, 1, 'gorush', 2, '', at, 20, 'delivered', '', false, '' FROM made;
    DROP TABLE made
"""
WAITING = 2_000_000
CLOSED = AppKey(1, "im.bench.closed")
FILL_QUEUE = """
    INSERT INTO notifications_opennotification (request_id, position, public_key_hash, installation_id, type,
        route_id, route_generation, state, queue_id, collapse_id, chat_id, message, payload_dropped,
        attempt_count, ambiguous_count, created_at, expires_at, due_at)
    SELECT (SELECT max(id) FROM notifications_notificationrequest), 0, sha512(n::text::bytea), n::text, 1,
        (%(routes)s::bigint[])[1 + n %% cardinality(%(routes)s)], 1, 'pending', queue.id,
        substring(sha256(n::text::bytea) FOR 16), 'chat', 'message', FALSE, 0, 0, now(), now() + interval '1 day', now()
    FROM generate_series(1, %(waiting)s) AS n
    CROSS JOIN (SELECT id FROM notifications_queue WHERE app_topic = %(app)s) AS queue
"""


def run(running: Fleet, options: Namespace) -> dict[str, object]:
    """Measure, print and return the figures."""
    requests, minutes = options.requests, options.minutes
    load = Load(running, Phones(PHONES), open=NOT_WAITED_FOR)
    load.prepare()
    _fill(running, requests, timedelta(days=options.days))
    figures: dict[str, dict[str, float]] = {"at first": {}}
    # Rows that are read for the first time come from the disk.
    figures["alone"] = _measured(load, "alone", after_chunks=1)
    followed = servers.standby(running.folder / "standby", running.database_url)
    with followed, _exporting(running.folder), psycopg.connect(running.database_url) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM notifications_notification")  # in a snapshot that stays open
        figures["at first"] = _measured(load, "at first", after_chunks=1)
        figures["at last"] = _measured(load, "at last", after_chunks=max(minutes - 3, 0))
    _set_autovacuum(running, "off")
    figures["without autovacuum"] = _measured(load, "without autovacuum", after_chunks=max(minutes // 6 - 1, 0))
    _set_autovacuum(running, "on")
    _fill_closed_queue(running, min(WAITING, requests))
    figures["queue closed"] = _measured(load, "queue closed")
    halts.end(halts.Kind.PAUSED, CLOSED, by="bench", now=datetime.now(UTC))
    figures["queue open again"] = _measured(load, "queue open again")
    _show(f"{RATE} requests/s for {minutes} minutes on a month of {requests:,} requests", figures)
    return {"requests": requests, "minutes": minutes, **figures}


def _show(title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Print each figure, and its multiple of the first column. The second column is for comparison."""
    first, alone, *others = figures.values()
    rows: dict[str, list[Cell]] = {}
    for name, value in first.items():
        found = [each.get(name, 0.0) for each in others]
        cells = [f"{each:,.2f} ({each / value if value else 1.0:.2f})" for each in found]
        rows[name] = [value, alone.get(name, 0.0), *cells]
    missed = [name for name, value in first.items() if any(each.get(name, 0.0) > GOAL * value for each in others)]
    show(f"{title} (goal: ≤ {GOAL:g} times)", ("figure", *figures), rows, missed=missed)


def _measured(load: Load, moment: str, *, after_chunks: int = 0) -> dict[str, float]:
    """Return the figures of a chunk, after others of which only the delays are printed.

    A checkpoint comes before it, so that WAL gets each page that changes as a whole once. The figures are printed at
    once, so that a run that fails after an hour has shown some.
    """
    print(f"{datetime.now(UTC):%H:%M:%S} {moment}", flush=True)
    for _ in range(after_chunks):
        _paced(load)
    load.running.database.execute("CHECKPOINT")
    figures = _poll(load.running) | _paced(load)
    print({name: round(value, 2) for name, value in figures.items()}, flush=True)
    return figures


def _paced(load: Load) -> dict[str, float]:
    last_id = load.running.number("SELECT coalesce(max(id), 0) FROM waku_bridge_outboundreply")
    found = replace(load, published=PUBLISHED.format(last_id=last_id)).paced(rate=RATE, seconds=CHUNK_SECONDS)
    figures = found.figures()
    print(f"{datetime.now(UTC):%H:%M:%S} p50 {figures['p50_ms']:.0f} ms, p99 {figures['p99_ms']:.0f} ms", flush=True)
    return {**figures, **{f"{name}_cpu_ms": value for name, value in found.by_process().items()}}


def _poll(running: Fleet) -> dict[str, float]:
    """Return the times of the searches for work that a worker makes every second, and the sizes of all there is."""
    running.database.execute(f"SELECT {set_all(BATCH_WORKER)}")
    looks = {f"look_{name}_ms": _median_ms(running.database, sql) for name, sql in LOOKS.items()}
    memory: defaultdict[str, float] = defaultdict(float)
    for process in running.processes():
        with suppress(psutil.NoSuchProcess):
            memory[f"{name_of(process)}_mb"] += process.memory_full_info().pss / 2**20
    database_mb = running.number("SELECT pg_database_size(current_database())") / 2**20
    return {**looks, **memory, "dead_rows": running.number(DEAD), "database_mb": database_mb}


def _median_ms(database: "psycopg.Connection[Any]", sql: str) -> float:
    def once() -> float:
        started, now = time.perf_counter(), datetime.now(UTC)
        database.execute(sql, {"now": now, "nothing_before": now - OVERLAP}).fetchone()
        return (time.perf_counter() - started) * 1000

    return median(once() for _ in range(SCANS))


def _fill(running: Fleet, requests: int, span: timedelta) -> None:
    """Fill the tables evenly over the days before now."""
    now = datetime.now(UTC)
    begin, end = now - span + timedelta(hours=1), FIRST_ID + requests  # nothing is to be removed at once
    with transaction.atomic():
        for table in (*BY_DAY, ENVELOPES, REPLIES):
            table.make_from(begin, to=now)
    for name in ("notifications_openrequest", "notifications_opennotification"):
        running.database.execute(f"SELECT setval('{name}_id_seq', {end + 1})")
    facts: dict[str, Any] = {"begin": begin, "zero": FIRST_ID, "step": (now - begin) / requests}
    facts["envelopes_from"] = now - timedelta(days=3)
    with connection.cursor() as cursor:
        for first in range(FIRST_ID, end, CHUNK):
            cursor.execute(FILL, facts | {"first": first, "last": min(first + CHUNK, end) - 1})
    running.database.execute("VACUUM ANALYZE")


@contextmanager
def _exporting(folder: Path) -> Iterator[None]:
    """Export yesterday each minute in a process of its own. The nightly reports do so once."""
    connections.close_all()  # or both processes would use the same ones
    process = servers.FORK.Process(target=_export, args=(folder,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _export(folder: Path) -> None:
    number = 0
    while True:
        now = datetime.now(UTC)
        lake = Lake(str(folder / f"lake-{number}"))
        export_day((now - timedelta(days=1)).date(), lake, now=now)
        number += 1
        time.sleep(CHUNK_SECONDS)


def _set_autovacuum(running: Fleet, state: LiteralString) -> None:
    running.database.execute(f"ALTER SYSTEM SET autovacuum = {state}")
    running.database.execute("SELECT pg_reload_conf()")


def _fill_closed_queue(running: Fleet, waiting: int) -> None:
    """Pause an app of Apple's, with ``waiting`` notifications."""
    now = datetime.now(UTC)
    halts.begin(halts.Kind.PAUSED, CLOSED, by="bench", reason="a closed queue", now=now)
    queues.create({QueueKey("gorush", *CLOSED, is_proven=True)})
    Channel.objects.create(**CLOSED._asdict(), last_success_at=now)
    routes = Route.objects.bulk_create(_route(f"{number:064x}".encode(), now) for number in range(PHONES))
    facts = {"app": CLOSED.app_topic, "waiting": waiting, "routes": [route.pk for route in routes]}
    running.database.execute(FILL_QUEUE, facts)
    running.database.execute("ANALYZE notifications_opennotification")


def _route(token: bytes, now: datetime) -> Route:
    """Return an address in the closed app."""
    route = Route(generation=0, created_at=now, bridge="waku", last_success_at=now)
    route.set_address("gorush", **CLOSED._asdict(), address=token)
    route.delivered_digest = route.address_digest
    return route
