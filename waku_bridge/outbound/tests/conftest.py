"""Development nodes on this process's event loop, where publishing and confirming run as well."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from embedded.node.node import NODE, Node, Settings
from embedded.node.server import create_app
from embedded.node.wire import StoreQuery
from embedded.servers.ports import free_port
from kit.batches.batch import Batch, Step, Work
from kit.batches.worker import Worker
from kit.db import clock as batches
from kit.http import Connections, submit
from tests.rig.delivering import TIMEOUT_SECONDS, WAKEUP, wait_for_wakeup
from tests.rig.peers import served
from tests.rig.rows import PUBSUB_TOPIC
from waku_bridge import node as node_client
from waku_bridge.node import Nodes, WakuNode
from waku_bridge.outbound import outbox, sending
from waku_bridge.outbound.outbox import Reply, reply_steps
from waku_bridge.outbound.sending import Sends


@dataclass
class DevNode:
    """A development node. ``waku`` is the server's client of it."""

    waku: WakuNode
    node: Node
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return self.waku.url

    def fails(self, **faults: Any) -> None:
        self.node.faults.update(faults)

    def has(self, *hashes: bytes) -> bool:
        return submit(self.waku.known(hashes)).result() == set(hashes)

    def stats(self) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            archived = self.node.archive.find(StoreQuery())["messages"]
            return {"published": self.node.published, "archived": len(archived)}

        return submit(look()).result()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[DevNode]]]:
    """Return a function that starts development nodes, which gossip with each other: ``start(2)``."""
    monkeypatch.setattr(node_client, "PEERS_SECONDS", 0.0)  # it is measured by another clock
    client = Connections(silent_seconds=5)
    with ExitStack() as running:

        def start_nodes(count: int) -> list[DevNode]:
            ports = [free_port() for _ in range(count)]
            return [start_node(port, [other for other in ports if other != port]) for port in ports]

        def start_node(port: int, peers: list[int]) -> DevNode:
            settings = Settings(shards=(PUBSUB_TOPIC,), peers=tuple(f"http://127.0.0.1:{other}" for other in peers))
            own = running.enter_context(ExitStack())
            url, app = own.enter_context(served(partial(create_app, settings), port))
            return DevNode(WakuNode(url, client), app[NODE], own.close)

        yield start_nodes
    submit(client.close()).result()


class Clock:
    """The clock of Django and of batches. It stands still until a test moves it."""

    def __init__(self) -> None:
        self.at = timezone.now()

    def goes(self, seconds: float, *processes: "OutboxProcess") -> None:
        """Let time pass, and then these processes work."""
        self.at += timedelta(seconds=seconds)
        for process in processes:
            process.works()

    def goes_to(self, at: datetime, *processes: "OutboxProcess") -> None:
        self.goes(max((at - self.at).total_seconds(), 0), *processes)


def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the stores as soon as a reply is published, and record what came of it at once."""
    monkeypatch.setattr(outbox, "NOTED_WITHIN_SECONDS", 0.0)
    monkeypatch.setattr(sending, "CHECK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(sending, "ASK_EVERY_SECONDS", 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(timezone, "now", lambda: own.at)
    monkeypatch.setattr(batches.Clock, "now", lambda _: own.at)
    ask_at_once(monkeypatch)
    return own


class Deciding(Step):
    """A step that decides on replies, like the steps that take requests."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies

    def next_at(self) -> float | None:
        return 0.0 if self._replies else None

    def work(self, batch: Batch) -> Work[None]:  # noqa: ARG002 - as steps do
        return Work(None, list(self._replies))

    def committed(self, _decided: None) -> None:
        self._replies.clear()


class OutboxProcess:
    """The part of a worker process that handles replies."""

    def __init__(self, nodes: Iterable[Any], stores: Iterable[Any] = ()) -> None:
        self.sends = Sends(Nodes(nodes), Nodes(stores), WAKEUP)
        self.replies = []
        self.steps = [Deciding(self.replies), *reply_steps(self.sends)]
        self.worker = Worker(self.steps, WAKEUP)

    def process_batch(self) -> bool:
        self.worker._rows.look_at = 0.0
        return self.worker.process_batch(now=timezone.now())

    def works(self) -> None:
        """Process batches until nothing is under way and nothing is due, neither in memory nor in the database."""
        deadline, quiet_batches = time.monotonic() + TIMEOUT_SECONDS, 0
        while quiet_batches < 2:
            assert time.monotonic() < deadline, "the process is still busy"
            quiet_batches = 0 if self.process_batch() or self._is_busy() else quiet_batches + 1
            wait_for_wakeup()

    def _is_busy(self) -> bool:
        is_due = any(at is not None and at <= time.monotonic() for at in (step.next_at() for step in self.steps))
        return is_due or bool(self.sends.under_way)
