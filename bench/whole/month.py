"""Benchmark of the server on the tables of a month, and of growth while it runs.

The tables are filled as by thirty days of requests, fewer than a thousand a second, as the disk permits. Then messages
come at an even rate. Meanwhile yesterday is exported repeatedly, a session keeps a snapshot open, retention runs, and a
standby follows. Each figure is taken at the beginning and at the end of that, and after ten minutes without autovacuum.
It is taken again behind two million notifications that wait in a closed queue, and when that has opened. The table
shows each figure as a multiple of the first one. A column without export, snapshot and standby is for comparison. Run
alone with ``python -m bench month``; it takes an hour (``--minutes``) and some 10 GB (``--requests``).
"""

import multiprocessing
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, LiteralString

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench.running import servers
from bench.running.fleet import Fleet, fleet, name_of
from bench.running.phones import Phones
from bench.whole import retention, throughput
from kit.batches.batch import RECENT
from kit.db.postgresql.sessions import BATCH_WORKER, set_all
from notifications.messages import ChannelKey

REQUESTS = 5_000_000
MINUTES = 60
RATE = 200
CHUNK_SECONDS = 60
PHONES = RATE * CHUNK_SECONDS  # each gets one push in a chunk: a second one would be coalesced with a late first one
DAYS = 30
# Ids of the rows of the month. The rows of the run itself come after them.
FIRST_ID = 1_000_000
GOAL = 1.2
SCANS = 20
FILLED = ("notifications_notificationrequest", "notifications_notification")
# In the tables of the month, only what this run published is counted. Counting all of it would cost more than the
# messages.
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL AND id > {last_id}"
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"
WAITING = 2_000_000
CLOSED = ChannelKey(1, "im.bench.closed")
FILL_QUEUE = """
    INSERT INTO notifications_notification_under_way (request_id, position, public_key_hash, installation_id, type,
        route_id, route_generation, state, queue_id, report, collapse_id, chat_id, message, payload_dropped,
        attempt_count, ambiguous_count, created_at, expires_at, next_attempt_at)
    SELECT (SELECT max(id) FROM notifications_notificationrequest), 0, sha512(n::text::bytea), n::text, 1,
        (%(routes)s::bigint[])[1 + n %% cardinality(%(routes)s)], 0, 'pending', queue.id, 'success',
        substring(sha256(n::text::bytea) FOR 16), 'chat', 'message', FALSE, 0, 0, now(), now() + interval '1 day', now()
    FROM generate_series(1, %(waiting)s) AS n
    CROSS JOIN (SELECT id FROM notifications_queue WHERE app_topic = %(app)s) AS queue
"""
FORK = multiprocessing.get_context("fork")


def run(requests: int = REQUESTS, minutes: int = MINUTES) -> dict[str, object]:
    """Measure, print and return the figures."""
    waiting = min(WAITING, requests)
    throughput.OPEN = "SELECT 0"  # a closed queue never empties
    with fleet() as running, tempfile.TemporaryDirectory(prefix="bench-") as name:
        phones = Phones(PHONES)
        throughput.prepare(running, phones)
        servers.set_up_django(Path(name), running.database_url)
        _fill(running, requests)
        # Rows that are read for the first time come from the disk.
        alone = _measured(running, phones, "alone", after_chunks=1)
        followed = servers.standby(Path(name) / "standby", running.database_url)
        with followed, _exporting(Path(name)), _a_snapshot(running.database_url):
            first = _measured(running, phones, "at first", after_chunks=1)
            last = _measured(running, phones, "at last", after_chunks=max(minutes - 3, 0))
        with _without_autovacuum(running):
            unvacuumed = _measured(running, phones, "without autovacuum", after_chunks=max(minutes // 6 - 1, 0))
        with _a_closed_queue(running, waiting):
            closed = _measured(running, phones, "queue closed")
        opened = _measured(running, phones, "queue open again")
        servers.close_connections()
    figures = {"at first": first, "alone": alone, "at last": last, "without autovacuum": unvacuumed}
    figures |= {"queue closed": closed, "queue open again": opened}
    _print(figures, requests=requests, minutes=minutes)
    return {"requests": requests, "minutes": minutes, **figures}


def _measured(running: Fleet, phones: Phones, moment: str, *, after_chunks: int = 0) -> dict[str, float]:
    """Return the figures of a chunk, after others of which only the delays are printed.

    The figures are printed at once, so that a run that fails after an hour has shown some.
    """
    print(f"{datetime.now(UTC):%H:%M:%S} {moment}", flush=True)
    for _ in range(after_chunks):
        _paced(running, phones)
    figures = _poll(running) | _paced(running, phones)
    print({name: round(value, 2) for name, value in figures.items()}, flush=True)
    return figures


def _fill(running: Fleet, requests: int) -> None:
    """Fill the tables evenly over the days before now."""
    now = datetime.now(UTC)
    begin = now - timedelta(days=DAYS) + timedelta(hours=1)  # nothing is to be removed at once
    retention.make_days(now)
    for table in FILLED:
        running.database.execute(f"SELECT setval('{table}_id_seq', {FIRST_ID + requests + 1})")
    per_hour = requests / (DAYS * 24 - 1)
    retention.fill(FIRST_ID, FIRST_ID + requests - 1, begin=begin, now=now, per_hour=per_hour)
    running.database.execute("VACUUM ANALYZE")


def _paced(running: Fleet, phones: Phones) -> dict[str, float]:
    last_id = running.count("SELECT coalesce(max(id), 0) FROM waku_bridge_outboundreply")
    throughput.PUBLISHED = PUBLISHED.format(last_id=last_id)
    found = throughput.paced(running, phones, rate=RATE, seconds=CHUNK_SECONDS)
    print(f"{datetime.now(UTC):%H:%M:%S} p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms", flush=True)
    by_process = {f"{name}_cpu_ms": value for name, value in found.run.by_process().items()}
    return {"p50_ms": found.p50_ms, "p99_ms": found.p99_ms, "cpu_ms": found.run.cpu_ms, **by_process}


def _poll(running: Fleet) -> dict[str, float]:
    """Return the present sizes of rows and processes, and the times of scans."""
    memory = {f"{name}_mb": value for name, value in _memory(running).items()}
    database_mb = running.count("SELECT pg_database_size(current_database())") / 2**20
    return {**_scans_ms(running), **memory, "dead_rows": running.count(DEAD), "database_mb": database_mb}


def _memory(running: Fleet) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for process in running.processes():
        with suppress(psutil.NoSuchProcess):
            total[name_of(process)] += process.memory_full_info().pss / 2**20
    return total


def _scans_ms(running: Fleet) -> dict[str, float]:
    """Return the time of each search for work that a worker makes every second."""
    from notifications.delivery import recording, settling  # noqa: PLC0415 - Django is set up only now
    from notifications.queues.queues import EXPIRED, IS_DUE  # noqa: PLC0415 - as above
    from waku_bridge.inbound.steps import Inbox  # noqa: PLC0415 - as above
    from waku_bridge.outbound.publishing import PENDING  # noqa: PLC0415 - as above

    looks = {"inbox": Inbox.waits, "due": IS_DUE, "expired": EXPIRED, "lost": recording.LOST}
    looks |= {"overdue": settling.OVERDUE, "replies": PENDING}
    running.database.execute(f"SELECT {set_all(BATCH_WORKER)}")
    return {f"look_{name}_ms": _median_ms(running.database, sql) for name, sql in looks.items()}


def _median_ms(database: "psycopg.Connection[Any]", sql: str) -> float:
    def once() -> float:
        started, now = time.perf_counter(), datetime.now(UTC)
        database.execute(f"SELECT EXISTS ({sql})", {"now": now, "nothing_before": now - RECENT}).fetchone()
        return (time.perf_counter() - started) * 1000

    return median(once() for _ in range(SCANS))


@contextmanager
def _exporting(folder: Path) -> Iterator[None]:
    """Export yesterday each minute in a process of its own. The nightly reports do so once."""
    process = FORK.Process(target=_export, args=(folder,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _export(folder: Path) -> None:
    from django.db import connections  # noqa: PLC0415 - Django is set up only now

    from spark_reports.export.days import export_day  # noqa: PLC0415 - as above
    from spark_reports.lake import Lake  # noqa: PLC0415 - as above

    connections.close_all()  # those inherited from the parent
    number = 0
    while True:
        now = datetime.now(UTC)
        lake = Lake(str(folder / f"lake-{number}"))
        export_day((now - timedelta(days=1)).date(), lake, now=now, on_rows=lambda *_: None)
        number += 1
        time.sleep(CHUNK_SECONDS)


@contextmanager
def _a_snapshot(url: str) -> Iterator[None]:
    """Keep a transaction open that counted something, as a forgotten session does."""
    with psycopg.connect(url) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM notifications_notification")
        yield
        forgotten.rollback()


@contextmanager
def _without_autovacuum(running: Fleet) -> Iterator[None]:
    _set(running, "autovacuum = off")
    try:
        yield
    finally:
        _set(running, "autovacuum = on")


def _set(running: Fleet, setting: LiteralString) -> None:
    running.database.execute(f"ALTER SYSTEM SET {setting}")
    running.database.execute("SELECT pg_reload_conf()")


@contextmanager
def _a_closed_queue(running: Fleet, waiting: int) -> Iterator[None]:
    """Pause an app of Apple's with ``waiting`` notifications, and resume it in the end."""
    from django.utils import timezone  # noqa: PLC0415 - Django is set up only now

    from notifications.messages import QueueKey  # noqa: PLC0415 - as above
    from notifications.queues import halts, queues  # noqa: PLC0415 - as above

    servers.close_connections()  # the forked export has closed them
    halts.pause(CLOSED, by="bench", why="a closed queue", now=timezone.now())
    queues.create({QueueKey("gorush", *CLOSED, is_proven=True)})
    channel = "INSERT INTO notifications_channel (token_type, app_topic, last_success_at) VALUES (%s, %s, now())"
    running.database.execute(channel, CLOSED)
    routes = _routes(timezone.now())
    running.database.execute(FILL_QUEUE, {"app": CLOSED.app_topic, "waiting": waiting, "routes": routes})
    running.database.execute("ANALYZE notifications_notification_under_way")
    yield
    halts.resume(CLOSED, by="bench", now=timezone.now())


def _routes(now: datetime) -> list[int]:
    """Create addresses in the closed app, and return their ids."""
    from registrations.keys.encryption import Purpose  # noqa: PLC0415 - Django is set up only now
    from registrations.keys.keyring import keyring  # noqa: PLC0415 - as above
    from registrations.models import Route  # noqa: PLC0415 - as above
    from registrations.routes.routes import identity_of  # noqa: PLC0415 - as above

    def route(number: int) -> Route:
        token = f"{number:064x}".encode()
        digest = keyring().digest(Purpose.ADDRESS, identity_of(*CLOSED, token))
        encrypted = keyring().encrypt(Purpose.ADDRESS, token)
        known = {"address_encrypted": encrypted, "address_digest": digest, "delivered_digest": digest}
        return Route(bridge="waku", gateway="gorush", **CLOSED._asdict(), created_at=now, last_success_at=now, **known)

    return [route.pk for route in Route.objects.bulk_create(map(route, range(PHONES)))]


def _print(figures: Mapping[str, Mapping[str, float]], *, requests: int, minutes: int) -> None:
    """Print each figure, and its multiple of the first column. The second column is for comparison."""
    table = Table(title=f"{RATE} requests/s for {minutes} minutes on a month of {requests:,} requests")
    for column in ("figure", *figures, "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    first, alone, *others = figures.values()
    for name, value in first.items():
        ratios = [each.get(name, 0.0) / value if value else 1.0 for each in others]
        cells = [f"{each.get(name, 0.0):,.2f} ({ratio:.2f})" for each, ratio in zip(others, ratios, strict=True)]
        style = "red" if max(ratios) > GOAL else ""
        row = (f"{value:,.2f}", f"{alone.get(name, 0.0):,.2f}", *cells, f"≤ {GOAL:g}")
        table.add_row(name.replace("_", " "), *row, style=style)
    Console().print(table)
