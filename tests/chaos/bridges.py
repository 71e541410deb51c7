"""World of the bridge faults: two Waku nodes that gossip, two bridges on both of them, and a PostgreSQL that may be
killed. It shares only the broker with other tests.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg

from embedded.servers import installed
from embedded.servers.ports import free_port
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from tests.rig import server as processes
from tests.rig.postgres import UNSYNCED, Cluster
from tests.rig.server import PUBSUB_TOPIC, RING_CAPACITY, Fleet, wait_for_http, wait_until

NODES = ("node-a", "node-b")
BRIDGES = ("bridge-a", "bridge-b")
WORKERS = ("batches", "tasks")
START_SECONDS = 60
OWNERS = """
    SELECT split_part(application_name, ' ', 3) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND application_name LIKE 'push-bridge %'
"""


@dataclass(frozen=True, slots=True)
class Bridges:
    """Fleet of nodes, bridges and workers around one cluster. ``urls`` are the nodes' URLs by node name."""

    fleet: Fleet
    cluster: Cluster
    urls: Mapping[str, str]

    @property
    def database_url(self) -> str:
        return self.fleet.environment["DATABASE_URL"]

    def start(self) -> None:
        self.cluster.start()
        self.fleet.run(processes.migrate())
        self.start_nodes(*NODES)
        self.start_bridges(*BRIDGES)
        self.start_workers()
        wait_until(self.owner, seconds=START_SECONDS, what="a bridge reads")

    def stop(self) -> None:
        self.fleet.kill(*self.fleet.running)
        self.cluster.kill()

    def start_nodes(self, *names: str) -> None:
        self.fleet.start(*(self._node(name) for name in names))
        wait_for_http(*(f"{self.urls[name]}/health" for name in names))

    def start_bridges(self, *names: str) -> None:
        bridge = processes.services()["bridge"]
        self.fleet.start(*(replace(bridge, name=name) for name in names))

    def start_workers(self) -> None:
        services = processes.services()
        self.fleet.start(*(services[name] for name in WORKERS if name not in self.fleet.running))

    def owner(self) -> str:
        """Return the name of the living bridge that holds the reader's lock in PostgreSQL, or an empty string."""
        names = {str(self.fleet.running[name].pid): name for name in BRIDGES if name in self.fleet.running}
        try:
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                rows = connection.execute(OWNERS).fetchall()
        except psycopg.OperationalError:
            return ""
        return next((names[pid] for (pid,) in rows if pid in names), "")

    def seconds_until_owned(self) -> float:
        """Wait until a living bridge holds the lock, and return the seconds that took."""
        started = time.monotonic()
        wait_until(self.owner, seconds=START_SECONDS, what="a bridge reads")
        return time.monotonic() - started

    def _node(self, name: str) -> ProcessSpec:
        """Return the process of a node. Its store is on disk and survives a restart, as that of nwaku does."""
        peers = [url for other, url in self.urls.items() if other != name]
        ring = ["--relay-cache-capacity", str(RING_CAPACITY), "--shard", PUBSUB_TOPIC, "--peer", *peers]
        data = ["--data", str(self.fleet.folder / f"{name}.sqlite3"), "--port", self.urls[name].rsplit(":", 1)[1]]
        return python(name, "-m", "embedded.node", *ring, *data, stop_order=StopOrder.PEER)


def new_bridges(folder: Path, redis_url: str, guard: Guard) -> Bridges:
    """Return bridges that are not started yet."""
    cluster = Cluster(installed.postgres(folder / "postgres", UNSYNCED), guard)
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in NODES}
    environment = {
        "DATABASE_URL": cluster.server.url(),
        "REDIS_URL": redis_url,
        "WAKU_NODES": ",".join(urls.values()),
        "WAKU_RING_CAPACITY": str(RING_CAPACITY),
    }
    return Bridges(Fleet(folder, environment, guard), cluster, urls)


@dataclass(slots=True)
class Lag:
    """Lag of reading the stores, sampled once per second.

    A sample is the seconds since the start, and the seconds since the oldest watermark (None while the database is
    away).
    """

    database_url: str
    samples: list[tuple[float, float | None]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def sample(self) -> None:
        self.samples.append((time.monotonic() - self.started, self.seconds()))

    def seconds(self) -> float | None:
        """Return the seconds since the oldest watermark, or since the start of an outage that is still to be read."""
        sql = """
            SELECT extract(epoch FROM now() - least(min(watermark_at),
                (SELECT min(start_at) FROM waku_bridge_storewindow WHERE reason = 'outage')))
            FROM waku_bridge_storewatermark
        """
        try:
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                [(seconds,)] = connection.execute(sql).fetchall()
        except psycopg.OperationalError:
            return None
        return None if seconds is None else float(seconds)

    def worst_by(self, seconds: float) -> Sequence[tuple[float, float | None]]:
        """Return the largest lag of each interval of ``seconds``, with the start of the interval."""
        worst: dict[float, float | None] = {}
        for at, lag in self.samples:
            begin = at // seconds * seconds
            known = [each for each in (worst.get(begin), lag) if each is not None]
            worst[begin] = max(known, default=None)
        return list(worst.items())
