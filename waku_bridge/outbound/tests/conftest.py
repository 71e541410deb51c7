"""Development nodes on this process's event loop, where publishing and confirming run as well."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from django.utils import timezone

from embedded.node.node import NODE, Settings
from embedded.node.server import create_app
from embedded.servers.ports import free_port
from kit.batches.batch import Batch, Step, Work
from kit.db import clock as batches
from kit.http.connections import new_client, submit
from tests.rig.delivering import TIMEOUT_SECONDS, WAKEUP, poll_and_process, wait_for_wakeup
from tests.rig.rows import PUBSUB_TOPIC
from waku_bridge.node import WakuNode
from waku_bridge.node import client as node_client
from waku_bridge.outbound import Nodes, Outbox, Reply, outbox


@dataclass
class DevNode:
    """A development node. ``waku`` is the server's client of it."""

    waku: WakuNode
    runner: web.AppRunner

    @property
    def url(self) -> str:
        return self.waku.url

    def fails(self, **faults: Any) -> None:
        self.runner.app[NODE].faults.update(faults)

    def stats(self) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.runner.app[NODE].stats()

        return submit(look()).result()

    def faults(self) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.runner.app[NODE].faults.as_dict()

        return submit(look()).result()

    def has(self, *hashes: bytes) -> bool:
        return submit(self.waku.known(hashes)).result() == set(hashes)

    def stop(self) -> None:
        submit(self.runner.cleanup()).result()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[DevNode]]]:
    """Return a function that starts development nodes, which gossip with each other: ``start(2)``."""
    monkeypatch.setattr(node_client, "PEERS_SECONDS", 0.0)  # it is measured by another clock
    client = new_client(timeout_seconds=5)
    running: list[DevNode] = []

    def start_nodes(count: int) -> list[DevNode]:
        ports = [free_port() for _ in range(count)]
        for port in ports:
            peers = tuple(f"http://127.0.0.1:{other}" for other in ports if other != port)
            runner = submit(_serve(Settings(shards=(PUBSUB_TOPIC,), peers=peers), port)).result()
            running.append(DevNode(WakuNode(f"http://127.0.0.1:{port}", client), runner))
        return running[-count:]

    yield start_nodes
    for node in running:
        node.stop()
    submit(client.aclose()).result()


async def _serve(settings: Settings, port: int) -> web.AppRunner:
    runner = web.AppRunner(create_app(settings), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


class Clock:
    """The clock of Django and of batches. It stands still until a test moves it."""

    def __init__(self) -> None:
        self.at = timezone.now()

    def goes(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def goes_to(self, at: datetime) -> None:
        self.at = max(self.at, at)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(timezone, "now", lambda: own.at)
    monkeypatch.setattr(batches.Clock, "now", lambda _: own.at)
    monkeypatch.setattr(outbox, "NOTED_WITHIN_SECONDS", 0.0)  # it is measured by another clock
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
        self.outbox = Outbox(Nodes(nodes), Nodes(stores), WAKEUP)
        self.replies = []
        self.steps = [Deciding(self.replies), *self.outbox.steps()]

    def process_batch(self) -> bool:
        return poll_and_process(self.steps)

    def works(self) -> None:
        """Process batches until nothing is under way and nothing is due, neither in memory nor in the database."""
        deadline, quiet_batches = time.monotonic() + TIMEOUT_SECONDS, 0
        while quiet_batches < 2:
            assert time.monotonic() < deadline, "the process is still busy"
            quiet_batches = 0 if self.process_batch() or self._is_busy() else quiet_batches + 1
            wait_for_wakeup()

    def _is_busy(self) -> bool:
        is_due = any(at is not None and at <= time.monotonic() for at in (step.next_at() for step in self.steps))
        return is_due or bool(self.outbox.publisher.under_way) or not self.outbox.confirmations.are_all_done()
