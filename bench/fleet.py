"""The whole server as processes of its own, started as `manage.py up` starts them, for the length of a benchmark."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench import servers
from bench.reading import environment_for, manage
from pushserver.stack.plan import services
from pushserver.supervisor.guard import Guard
from pushserver.supervisor.processes import ProcessSpec

TOPIC = "/waku/2/rs/16/32"
RING_CAPACITY = 100_000
# What a benchmark of messages does without.
LEFT_OUT = {"web"}


@dataclass(frozen=True, slots=True)
class Fleet:
    """``ours`` are the server's processes, PostgreSQL and Valkey; ``peers`` the development node and gorush."""

    node_url: str
    gorush_url: str
    database: "psycopg.Connection[tuple[Any, ...]]"
    ours: Mapping[str, psutil.Process]
    peers: Mapping[str, psutil.Process]

    def cpu_seconds(self) -> dict[str, float]:
        """By name, so far."""
        return {name: servers.cpu_seconds(process) for name, process in {**self.ours, **self.peers}.items()}

    def count(self, sql: str) -> int:
        row = self.database.execute(sql).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def fleet(*, envelope_processes: int = 2) -> Iterator[Fleet]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.chmod(0o755)
        before = _children()
        database_url, _ = stack.enter_context(servers.postgres(folder))
        redis_url = stack.enter_context(servers.valkey(folder))
        stores = _children() - before
        node_url = stack.enter_context(servers.node("--shard", TOPIC, "--relay-cache-capacity", str(RING_CAPACITY)))
        gorush_url = stack.enter_context(servers.gorush())
        peers = _children() - stores - before
        environment = environment_for(folder, database_url, redis_url, node_url) | {"GORUSH_URL": gorush_url}
        manage("migrate", "--verbosity=0", environment=environment)
        running = {
            spec.name: stack.enter_context(_service(spec, environment))
            for spec in services(
                data_dir=folder, host="127.0.0.1", port=0, cpus=envelope_processes, delivery_processes=1
            )
            if spec.name not in LEFT_OUT
        }
        database = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        yield Fleet(node_url, gorush_url, database, {**running, **_named(stores)}, _named(peers))


@contextmanager
def _service(spec: ProcessSpec, environment: Mapping[str, str]) -> Iterator[psutil.Process]:
    arguments = {**spec.arguments(), "env": {**environment, **spec.environment}}
    with Guard() as guard, servers.process(spec.command, **arguments) as running:
        guard.watch(running.pid, spec.stop_signal)  # its children, too, and also when this process is killed
        yield psutil.Process(running.pid)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children())


def _named(processes: set[psutil.Process]) -> dict[str, psutil.Process]:
    return {_name(process): process for process in processes}


def _name(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    known = {"devnode": "development node", "gorush": "development gorush", "valkey": "valkey"}
    return next((name for part, name in known.items() if part in line), "postgres")
