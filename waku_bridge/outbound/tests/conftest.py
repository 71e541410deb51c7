"""Real development nodes on this process's event loop, where publishing and confirming run as well."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from notifications.connections import new_client, submit
from pushserver.embedded.ports import free_port
from tests.factories.envelopes import PUBSUB_TOPIC
from waku_bridge.devnode.node import NODE
from waku_bridge.devnode.server import create_app
from waku_bridge.devnode.settings import Settings
from waku_bridge.node import WakuNode


@dataclass
class DevNode:
    """``waku`` is the client that the server has for it."""

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

    def has(self, *hashes: bytes) -> bool:
        return submit(self.waku.known(hashes)).result() == set(hashes)

    def stop(self) -> None:
        submit(self.runner.cleanup()).result()


@pytest.fixture
def start() -> Iterator[Callable[..., list[DevNode]]]:
    """``start(2)``: so many development nodes that gossip with each other."""
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
