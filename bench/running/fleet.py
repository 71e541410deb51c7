"""The whole server as users start it, `manage.py up`, for the length of a benchmark.

The development node and gorush run beside it and are counted apart. Everything else that `up` starts is the server's.
"""

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
from django.db import connections

from bench.running import servers
from bench.running.servers import SECRETS, TOPIC
from embedded.servers.ports import free_port

RING_CAPACITY = 100_000
READY_SECONDS = 120.0
WRITTEN = """
    SELECT (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables)::bigint, wal_records::bigint,
        wal_bytes::bigint, wal_fpi::bigint
    FROM pg_stat_wal
"""
# A part of a process's command line, and the name of its kind. The first part that matches decides.
KINDS = ("bridge", "batches", "tasks", "reports")
NAMES = {part: kind for kind in KINDS for part in (f"pushserver {kind}", f"celeryd: {kind}@")}
NAMES |= {"granian": "web", "postgres": "postgres", "pgserver": "postgres", "valkey": "valkey"}


class Fleet(NamedTuple):
    """A running server. ``roots`` are `manage.py up`, and PostgreSQL where that does not start it."""

    folder: Path
    node_url: str
    gorush_url: str
    database_url: str
    database: "psycopg.Connection[tuple[Any, ...]]"
    roots: Sequence[psutil.Process]

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the server, PostgreSQL and Valkey included."""
        return [each for root in self.roots for each in (root, *root.children(recursive=True))]

    def bridge(self) -> psutil.Process:
        """Return the bridge that reads. PostgreSQL has the process id in the name of its session."""
        sessions = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE 'push-bridge %'"
        [(name,)] = self.database.execute(sessions).fetchall()
        return psutil.Process(int(name.rpartition(" ")[2]))

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far, by kind of process."""
        total: defaultdict[str, float] = defaultdict(float)
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                total[name_of(process)] += servers.spent_by(process)
        return total

    def written(self) -> dict[str, int]:
        """Return what PostgreSQL has written so far. Most of WAL's bytes are full-page images if there are many."""
        [numbers] = self.database.execute(WRITTEN).fetchall()
        return dict(zip(("rows", "wal_records", "wal_bytes", "full_page_images"), numbers, strict=True))

    def number(self, sql: str) -> int:
        """Return the one number that a statement finds."""
        [(number,)] = self.database.execute(sql).fetchall()
        return int(number)


def name_of(process: psutil.Process) -> str:
    """Return the kind of a process. Where the command line does not show it, it is the parent's."""
    line = " ".join(process.cmdline())
    if name := next((name for part, name in NAMES.items() if part in line), ""):
        return name
    parent = process.parent()
    return name_of(parent) if parent and "manage.py up" not in line else "supervisor"


@contextmanager
def fleet(*options: str, ring_capacity: int = RING_CAPACITY, away_ms: float = 0.0) -> Iterator[Fleet]:
    """Run `manage.py up` with these options, on a database that may be ``away_ms`` milliseconds away."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        node_url = stack.enter_context(servers.node("--shard", TOPIC, "--relay-cache-capacity", str(ring_capacity)))
        gorush_url = stack.enter_context(servers.gorush())
        url = f"http://127.0.0.1:{(port := free_port())}"
        configured, further = stack.enter_context(servers.configured_database(folder, away_ms=away_ms))
        environment = os.environ | {
            "DATA_DIR": str(folder / "data"),
            "PORT": str(port),
            "WAKU_NODES": node_url,
            "GORUSH_URL": gorush_url,
            "WAKU_RING_CAPACITY": str(ring_capacity),
            **SECRETS,
            **configured,
            "CANARY_PERIOD_SECONDS": "0",
            "NEW_INSTALLATIONS_PER_MINUTE": "1000000",  # all phones are new, and all come at once
            "LOG_LEVEL": "WARNING",
            "SENDER_LIMITS": "1000000/1,100000000/60",  # one sender sends all requests
        }
        command = [sys.executable, "manage.py", "up", *options]
        root = psutil.Process(stack.enter_context(servers.process(command, env=environment)).pid)
        servers.wait_until(lambda: servers.answers(f"{url}/readyz"), READY_SECONDS)
        embedded = json.loads((folder / "data" / "embedded.json").read_text())
        database_url = configured["DATABASE_URL"] or embedded["DATABASE_URL"]
        database = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        yield Fleet(folder, node_url, gorush_url, database_url, database, [root, *further])


@contextmanager
def fleet_and_django() -> Iterator[Fleet]:
    """Run the whole server, and set up Django in this process on its database."""
    with fleet() as running:
        servers.set_up_django(running.folder, running.database_url)
        yield running
        connections.close_all()
