"""The whole server as users start it, `manage.py up`, for the length of a benchmark.

The development node and gorush run beside it and are counted apart. Everything else that `up` starts is the server's.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench.running import servers
from bench.running.servers import SERVER_KEY, TOPIC
from embedded.servers.ports import free_port

RING_CAPACITY = 100_000
READY_SECONDS = 120.0
# A part of a process's command line, and the name of its kind. The first part that matches decides.
NAMES = {
    "pushserver bridge": "bridge",
    "pushserver batches": "batches",
    "celeryd: batches@": "batches",
    "pushserver tasks": "tasks",
    "celeryd: tasks@": "tasks",
    "pushserver reports": "reports",
    "celeryd: reports@": "reports",
    "granian": "web",
    "postgres": "postgres",
    "pgserver": "postgres",
    "valkey": "valkey",
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running server. ``roots`` are `manage.py up`, and PostgreSQL where that does not start it."""

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
        [(name,)] = self.database.execute(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE 'push-bridge %'"
        ).fetchall()
        return psutil.Process(int(name.rpartition(" ")[2]))

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far, by kind of process."""
        total: defaultdict[str, float] = defaultdict(float)
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                total[name_of(process)] += servers.spent_by(process)
        return total

    def count(self, sql: str) -> int:
        """Return the one number that a statement finds."""
        row = self.database.execute(sql).fetchone()
        return int(row[0]) if row else 0


def name_of(process: psutil.Process) -> str:
    """Return the kind of a process. Where the command line does not show it, it is the parent's."""
    line = " ".join(process.cmdline())
    if name := next((name for part, name in NAMES.items() if part in line), ""):
        return name
    parent = process.parent()
    return name_of(parent) if parent and "manage.py up" not in line else "supervisor"


@contextmanager
def fleet(*options: str, ring_capacity: int = RING_CAPACITY, away_ms: float = 0.0) -> Iterator[Fleet]:
    """Run `manage.py up` with these options until it is ready, and stop it in the end.

    Its database may be ``away_ms`` milliseconds away.
    """
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
            "SERVER_PRIVATE_KEY": SERVER_KEY,
            **configured,
            "CANARY_PERIOD_SECONDS": "0",
            "NEW_INSTALLATIONS_PER_MINUTE": "1000000",  # all phones are new, and all come at once
            "LOG_LEVEL": "WARNING",
            # One sender sends all requests, faster than the limits allow.
            "SENDER_LIMITS": "1000000/1,100000000/60",
        }
        root = stack.enter_context(_up(folder / "up.log", options, environment))
        servers.wait_until(lambda: servers.answers(f"{url}/readyz"), READY_SECONDS)
        embedded = json.loads((folder / "data" / "embedded.json").read_text())
        database_url = configured["DATABASE_URL"] or embedded["DATABASE_URL"]
        database = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        yield Fleet(node_url, gorush_url, database_url, database, [root, *further])


@contextmanager
def _up(log: Path, options: tuple[str, ...], environment: dict[str, str]) -> Iterator[psutil.Process]:
    command = [sys.executable, "manage.py", "up", *options]
    with log.open("wb") as stream, subprocess.Popen(command, env=environment, stdout=stream, stderr=stream) as running:
        try:
            yield psutil.Process(running.pid)
        finally:
            running.terminate()
            running.wait(timeout=60)
