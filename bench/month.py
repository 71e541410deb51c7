"""Measure how the server works on what a month has left, and whether anything grows while it does.

The tables are filled as by thirty days of requests, fewer than a thousand a second, as the disk bears it. Then messages
come at an even rate, while days are exported again and again, somebody keeps a snapshot open, and retention removes
what gets too old, and a standby follows. Each figure is taken at the beginning and at the end.
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
from typing import Any

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench import retention, servers, throughput
from bench.fleet import Fleet, fleet, name_of
from bench.phones import Phones

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
        retention.close_connections()
    ratios = {figure: after[figure] / before[figure] for figure in before if before[figure]}
    _print(before, after, ratios, requests=requests, minutes=minutes)
    return {"requests": requests, "minutes": minutes, "before": before, "after": after, "ratios": ratios}


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

    looks = {"due": IS_DUE, "expired": EXPIRED, "lost": recording.LOST, "overdue": settling.OVERDUE}
    return {f"look_{name}_ms": _median_ms(running.database, sql) for name, sql in looks.items()}


def _median_ms(database: "psycopg.Connection[Any]", sql: str) -> float:
    def once() -> float:
        started = time.perf_counter()
        database.execute(f"SELECT EXISTS ({sql})", {"now": datetime.now(UTC)}).fetchone()
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


def _print(
    before: Mapping[str, float],
    after: Mapping[str, float],
    ratios: Mapping[str, float],
    *,
    requests: int,
    minutes: int,
) -> None:
    table = Table(title=f"{RATE} requests/s for {minutes} minutes on a month of {requests:,} requests")
    for column in ("figure", "at first", "at last", "ratio", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, ratio in ratios.items():
        style = "red" if ratio > GOAL else ""
        row = (name.replace("_", " "), f"{before[name]:,.2f}", f"{after[name]:,.2f}", f"{ratio:.2f}", f"≤ {GOAL:g}")
        table.add_row(*row, style=style)
    Console().print(table)
