"""Resources of the server during a siege: memory and CPU time of each process, rows and bytes in the database."""

import threading
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any, Self

import psutil
import psycopg

from tests.rig.server import Fleet, wait_until

EVERY_SECONDS = 2.0
TABLES = """
    SELECT coalesce(inhparent::regclass::text, relname), sum(pg_total_relation_size(oid))::bigint
    FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname !~ '^(django|auth|tests)'
    GROUP BY 1
"""
# The `_under_way` partitions. A flood is hardest when PostgreSQL's statistics have them as empty, until the next
# ANALYZE.
UNDER_WAY = [
    f"{table}_under_way"
    for table in (
        *("waku_bridge_inboundenvelope", "waku_bridge_outboundreply"),
        *("notifications_notification", "notifications_notificationrequest"),
    )
]


def analyze_nothing(database_url: str) -> None:
    """Wait until nothing is under way, and let PostgreSQL collect its statistics then."""
    counted = " + ".join(f"(SELECT count(*) FROM {table})" for table in UNDER_WAY if "reply" not in table)
    with psycopg.connect(database_url, autocommit=True) as connection:
        wait_until(
            lambda: connection.execute(f"SELECT {counted} = 0").fetchone() == (True,), what="nothing is under way"
        )
        connection.execute(f"ANALYZE {', '.join(UNDER_WAY)}")


class Memory:
    """Largest memory of each process of a fleet, in MB, and the cores that it used, while this context was open."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.max_mb: defaultdict[str, float] = defaultdict(float)
        self.first_mb: dict[str, float] = {}
        self.cores: dict[str, float] = {}
        self.machine_cores = 0.0

    def __enter__(self) -> Self:
        self._began, self._cpu, self._busy = time.monotonic(), cpu_seconds(self._fleet), _busy_seconds()
        self._poll()
        self.first_mb = dict(self.max_mb)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        took = time.monotonic() - self._began
        self.cores = {name: (now - self._cpu[name]) / took for name, now in cpu_seconds(self._fleet).items()}
        self.machine_cores = (_busy_seconds() - self._busy) / took

    def _watch(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._poll()

    def _poll(self) -> None:
        for name, process in self._fleet.running.items():
            try:
                sizes = [each.memory_full_info().pss for each in _family(process.pid)]
            except psutil.NoSuchProcess:
                continue
            self.max_mb[name] = max(self.max_mb[name], sum(sizes) / 2**20)


def cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """Return the CPU time of each process with its children."""
    return {name: cpu_seconds_of(process.pid) for name, process in fleet.running.items()}


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a process with its children, including children that have ended."""
    found = 0.0
    for each in _family(pid):
        with suppress(psutil.NoSuchProcess):  # it has ended, and its parent has its time from now on
            found += sum(each.cpu_times()[:4])
    return found


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)


def stored(database_url: str) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of each table."""
    with psycopg.connect(database_url) as connection:
        sizes: list[tuple[str, int]] = connection.execute(TABLES).fetchall()
        return {name: (_count(connection, name), size) for name, size in sizes}


def inbox(database_url: str) -> dict[str, int]:
    """Count the envelopes in each state."""
    with psycopg.connect(database_url) as connection:
        counted = "SELECT state, count(*) FROM waku_bridge_inboundenvelope GROUP BY 1 ORDER BY 1"
        states: list[tuple[str, int]] = connection.execute(counted).fetchall()
        return dict(states)


def given_up(database_url: str) -> int:
    """Count the envelopes that failed, or were dropped because too many waited."""
    with psycopg.connect(database_url) as connection:
        counted = "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE reason = 'overload' OR state = 'failed'"
        [(count,)] = connection.execute(counted)
        return int(count)


def _count(connection: "psycopg.Connection[Any]", table: str) -> int:
    query = psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(table))
    [(count,)] = connection.execute(query)
    return int(count)
