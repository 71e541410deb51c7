"""World of a storm: the whole server with both bridges, and two of each part that may be lost: Waku nodes that gossip,
bridges of Waku, real gorushes in front of Apple and Google, and PostgreSQL with a standby.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from itertools import cycle
from pathlib import Path

import orjson
import psycopg

from embedded.servers.ports import free_port
from embedded.stack import plan
from embedded.supervisor.guard import Guard
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from tests.interop.xmpp import peers
from tests.interop.xmpp.service import APP, BRIDGE, Service, bridge
from tests.rig import server
from tests.rig.network import Network
from tests.rig.peers import GORUSH, RECOMMENDED, Servers, ask
from tests.rig.postgres import Replicas, replicas
from tests.rig.server import PUBSUB_TOPIC, RING_CAPACITY, SERVER, UNLIMITED, Fleet, NewFleet, wait_for_http, wait_until
from waku_bridge.dialect import to_json
from waku_bridge.messages import WakuMessage

NODES, GORUSHES, BRIDGES = ("node-a", "node-b"), ("gorush-a", "gorush-b"), ("bridge-a", "bridge-b")
WORKERS = ("batches", "tasks")
# A further gorush, which only a further worker of batches knows. They are started by the tests that need them.
OTHER_GORUSH, OTHER_WORKER = "gorush-c", "batches-c"
# The processes that log tokens by design, as they act for Apple and Google or for another operator.
FOREIGN = ("gorush", "fakes", "prosody", "node")
OWNERS = """
    SELECT split_part(application_name, ' ', 3) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND application_name LIKE 'push-bridge %'
"""
LAG = "SELECT extract(epoch FROM now() - min(watermark_at)) FROM waku_bridge_storewatermark"


@dataclass(frozen=True, slots=True)
class World:
    """The parts by name. ``urls`` has the addresses of nodes and gorushes."""

    fleet: Fleet
    servers: Servers
    replicas: Replicas
    service: Service
    urls: Mapping[str, str]

    def start(self, *names: str) -> None:
        """Start parts, also again, and wait until nodes and gorushes answer."""
        for name in names:
            if name in (*GORUSHES, OTHER_GORUSH):
                self.servers.real(name, port=server.port_of(self.urls[name]), **RECOMMENDED)
            elif name == OTHER_WORKER:
                environment = {**self.fleet.environment, "GORUSH_URL": self.urls[OTHER_GORUSH]}
                replace(self.fleet, environment=environment).start(self._spec(name))
            else:
                self.fleet.start(self._spec(name))
        wait_for_http(*(f"{self.urls[name]}/health" for name in names if name in NODES))

    def _spec(self, name: str) -> ProcessSpec:
        """Return the process of a part. A node's store is on disk and survives a restart, as that of nwaku does."""
        if name == BRIDGE:
            return bridge()
        if name == OTHER_WORKER:
            return plan.worker(name, "batches", "--pool=prefork", "--concurrency=1")
        if name not in NODES:
            return replace(server.services()["bridge" if name in BRIDGES else name], name=name)
        others = [self.urls[other] for other in NODES if other != name]
        ring = ["--relay-cache-capacity", str(RING_CAPACITY), "--shard", PUBSUB_TOPIC, "--peer", *others]
        data = ["--data", str(self.fleet.folder / f"{name}.sqlite3"), "--port", str(server.port_of(self.urls[name]))]
        return python(name, "-m", "embedded.node", *ring, *data, stop_order=StopOrder.PEER)

    def reader(self) -> str:
        """Return the name of the living bridge that holds the reader's lock in PostgreSQL, or an empty string."""
        names = {str(self.fleet.running[name].pid): name for name in BRIDGES if name in self.fleet.running}
        with suppress(psycopg.OperationalError):
            return next((names[pid] for (pid,) in self.replicas.primary.run(OWNERS) if pid in names), "")
        return ""

    def seconds_until_read(self) -> float:
        """Wait until a living bridge reads, and return the seconds that took."""
        started = time.monotonic()
        wait_until(self.reader, what="a bridge reads")
        return time.monotonic() - started

    def lag_seconds(self) -> float:
        """Return the age of the oldest watermark of a store, or of an outage that is still to be read."""
        [(seconds,)] = self.replicas.primary.run(LAG)
        return float(str(seconds))

    def hand_over(self) -> Callable[[WakuMessage], None]:
        """Return a function that gives a message to a node, as a peer does by gossip, to the next one that takes it."""
        urls = cycle(self.urls[name] for name in NODES)

        def publish(message: WakuMessage) -> None:
            body = orjson.dumps([{"pubsubTopic": PUBSUB_TOPIC, "message": to_json(message)}])
            wait_until(lambda: _is_taken(next(urls), body), what="a node takes a message", pause_seconds=0.1)

        return publish

    @contextmanager
    def network(self) -> Iterator[Network]:
        """Open a network with a connection to the current primary. Its record of pushes is that of Apple and Google."""
        primary = self.replicas.primary.server.url()
        with closing(Network(self.urls[NODES[0]], self.servers.fakes_url, primary, SERVER.pub33)) as network:
            yield network

    def own_logs(self) -> dict[str, str]:
        return {name: text for name, text in self.fleet.logs().items() if not name.startswith(FOREIGN)}


def _is_taken(url: str, body: bytes) -> bool:
    with suppress(OSError, HTTPException):
        return ask(url, "POST", "/dev/gossip", body).status == 204
    return False


@contextmanager
def open_world(
    new_fleet: NewFleet, folder: Path, guard: Guard, *, is_synchronous: bool = True, **settings: str
) -> Iterator[World]:
    """Start everything, and kill it at the end."""
    pair = replicas(folder, guard, is_synchronous=is_synchronous)
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in (*NODES, *GORUSHES, OTHER_GORUSH)}
    own = {
        "DATABASE_URL": pair.url,
        "WAKU_NODES": ",".join(urls[name] for name in NODES),
        "WAKU_RING_CAPACITY": str(RING_CAPACITY),
        "GORUSH_URL": ",".join(urls[name] for name in GORUSHES),
    }
    fleet = new_fleet("storm", **own | UNLIMITED | settings)
    try:
        pair.start()
        peer = peers.prosody(fleet)
        fleet.environment.update(peers.component_of(peer))
        world = World(fleet, Servers(fleet, GORUSH, fakes_port=free_port()), pair, Service(peer, fleet), urls)
        fleet.run(server.migrate())
        primary = replace(fleet, environment={**fleet.environment, "DATABASE_URL": pair.primary.server.url()})
        Service(peer, primary).add_app(APP)
        world.start(*NODES, *GORUSHES, *BRIDGES, *WORKERS, BRIDGE)
        asyncio.run(world.service.wait_until_connected())
        world.seconds_until_read()
        yield world
    finally:
        fleet.kill(*fleet.running)
        pair.stop()
