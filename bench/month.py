"""Measure how the server works on what a month has left, and whether anything grows while it does.

The tables are filled as by thirty days of requests, fewer than a thousand a second, as the disk bears it. Then messages
come at an even rate, while days are exported again and again, somebody keeps a snapshot open, and retention removes
what gets too old, and a standby follows. Each figure is taken at the beginning and at the end, and once more after ten
minutes without autovacuum.
Run alone with ``python -m bench month``; it takes an hour (``--minutes``) and some 10 GB (``--requests``).
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

from bench import retention, servers, throughput
from bench.fleet import Fleet, fleet, name_of
from bench.phones import Phones
from kit.sessions import BATCH_WORKER, set_all
from kit.turns import RECENT

REQUESTS = 5_000_000
MINUTES = 60
RATE = 200
CHUNK_SECONDS = 60
PHONES = 1500
DAYS = 30
# Ids of what the month has left. What the run itself stores comes behind it.
FIRST_ID = 1_000_000
GOAL = 1.2
SCANS = 20
FILLED = ("notifications_notificationrequest", "notifications_notification")
# Of a month's tables only what this run published is counted: counting all of them would cost more than the messages.
PUBLISHED = "SELECT count(*) FROM waku_bridge_outboundreply WHERE published_at IS NOT NULL AND id > {last_id}"
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"
FORK = multiprocessing.get_context("fork")


def run(requests: int = REQUESTS, minutes: int = MINUTES) -> dict[str, object]:
    """Measure, print and return the figures."""
    with fleet() as running, tempfile.TemporaryDirectory(prefix="bench-") as name:
        phones = Phones(PHONES)
        throughput.prepare(running, phones)
        retention.set_up_django(Path(name), running.database_url)
        _fill(running, requests)
        _paced(running, phones)  # what is read for the first time comes from the disk
        before = _look(running) | _paced(running, phones)
        followed = servers.standby(Path(name) / "standby", running.database_url)
        with followed, _exporting(Path(name)), _a_snapshot(running.database_url):
            for _ in range(max(minutes - 2, 1)):
                _paced(running, phones)
            after = _look(running) | _paced(running, phones)
        with _without_autovacuum(running):
            for _ in range(max(minutes // 6 - 1, 1)):
                _paced(running, phones)
            unvacuumed = _look(running) | _paced(running, phones)
        retention.close_connections()
    figures = {"before": before, "after": after, "without autovacuum": unvacuumed}
    _print(figures, requests=requests, minutes=minutes)
    return {"requests": requests, "minutes": minutes, **figures}


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
    by_process = {f"{name}_cpu_ms": value for name, value in found.run.by_process().items()}
    return {"p50_ms": found.p50_ms, "p99_ms": found.p99_ms, "cpu_ms": found.run.cpu_ms, **by_process}


def _look(running: Fleet) -> dict[str, float]:
    """Return what rows, scans and processes take now."""
    memory = {f"{name}_mb": value for name, value in _memory(running).items()}
    return {**_scans_ms(running), **memory, "dead_rows": running.count(DEAD), "database_mb": _database_mb(running)}


def _database_mb(running: Fleet) -> float:
    return running.count("SELECT pg_database_size(current_database())") / 2**20


def _memory(running: Fleet) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for process in running.processes():
        with suppress(psutil.NoSuchProcess):
            total[name_of(process)] += process.memory_full_info().pss / 2**20
    return total


def _scans_ms(running: Fleet) -> dict[str, float]:
    """Return how long each look takes that a worker makes every second."""
    from notifications.delivery import recording, settling  # noqa: PLC0415 - Django is set up only now
    from notifications.queues import EXPIRED, IS_DUE  # noqa: PLC0415 - as above
    from waku_bridge.outbound.publishing import PENDING  # noqa: PLC0415 - as above
    from waku_bridge.steps import Inbox  # noqa: PLC0415 - as above

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
    """Export a day each minute, as the nightly reports do, in a process of its own."""
    process = FORK.Process(target=_export, args=(folder,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _export(folder: Path) -> None:
    from django.db import connections  # noqa: PLC0415 - Django is set up only now

    from spark_reports.export import export_day  # noqa: PLC0415 - as above
    from spark_reports.lake import Lake  # noqa: PLC0415 - as above

    connections.close_all()  # those of the process that was forked
    number = 0
    while True:
        now = datetime.now(UTC)
        lake = Lake(str(folder / f"lake-{number}"))
        export_day((now - timedelta(days=1 + number % (DAYS - 2))).date(), lake, now=now, on_rows=lambda *_: None)
        number += 1
        time.sleep(CHUNK_SECONDS)


@contextmanager
def _a_snapshot(url: str) -> Iterator[None]:
    """Have somebody count in a transaction and forget to end it."""
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


def _print(figures: Mapping[str, Mapping[str, float]], *, requests: int, minutes: int) -> None:
    before, after, unvacuumed = figures.values()
    table = Table(title=f"{RATE} requests/s for {minutes} minutes on a month of {requests:,} requests")
    for column in ("figure", "at first", "at last", "ratio", "without autovacuum", "ratio", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, first in before.items():
        ratios = [each[name] / first if first else 1.0 for each in (after, unvacuumed)]
        values = [f"{value:,.2f}" for value in (first, after[name], ratios[0], unvacuumed[name], ratios[1])]
        table.add_row(name.replace("_", " "), *values, f"≤ {GOAL:g}", style="red" if max(ratios) > GOAL else "")
    Console().print(table)
