"""Waku nodes in pairs that gossip: development nodes in every run, real ones (go-waku) in `make interop`."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from embedded.servers.ports import free_port
from embedded.supervisor.processes import ProcessSpec, StopOrder, python
from kit.http import Connections
from tests.rig import server as processes
from tests.rig.peers import Answer, ask
from tests.rig.server import PUBSUB_TOPIC, Fleet
from waku_bridge.dialect import from_json
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

RING_CAPACITY = 1000
TIMEOUT_SECONDS = 60.0
PAUSE_SECONDS = 0.05
# Of the messages that show whether nodes gossip. They may arrive late, as gossip repeats what was sent before the link.
PROBES = "/waku/1/0x00000000/rfc26"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two linked nodes, by URL. Each gets the messages of the other one by gossip."""

    here: str
    there: str

    def run(self, use: Callable[[WakuNode, WakuNode], Awaitable[T]]) -> T:
        """Run a coroutine with the node clients of production."""

        async def main() -> T:
            async with Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=2**28) as client:
                return await use(WakuNode(self.here, client), WakuNode(self.there, client))

        return asyncio.run(main())


@dataclass(frozen=True, slots=True)
class Nodes:
    """Starter of nodes on loopback. ``waku`` is the binary of go-waku."""

    fleet: Fleet
    waku: Path

    def development_pair(self) -> Pair:
        ports = free_port(), free_port()
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for number, port in enumerate(ports):
            options = ["--port", str(port), "--shard", PUBSUB_TOPIC, "--peer", urls[1 - number]]
            ring = ["--relay-cache-capacity", str(RING_CAPACITY)]
            spec = python(f"devnode-{port}", "-m", "embedded.node", *options, *ring, stop_order=StopOrder.PEER)
            self.fleet.start(spec)
        processes.wait_for_http(*(f"{url}/health" for url in urls))
        return linked(Pair(*urls))

    def real_pair(self) -> Pair:
        """Start two go-wakus that are subscribed once by REST, as unlike nwaku they keep nothing for readers of their
        own topics.
        """
        here = self.real()
        there = self.real(f"--staticnode={address_of(here)}")
        for url in (here, there):
            assert say(url, "POST", "/relay/v1/subscriptions", [PUBSUB_TOPIC]).status == 200
        return linked(Pair(here, there))

    def real(self, *options: str) -> str:
        """Start a go-waku that looks for no peers and may be alone, and return its URL."""
        rest, tcp = free_port(), free_port()
        command = [
            str(self.waku),
            "--address=127.0.0.1",
            f"--tcp-port={tcp}",
            f"--nodekey={secrets.token_hex(32)}",
            "--cluster-id=16",
            f"--pubsub-topic={PUBSUB_TOPIC}",
            "--relay=true",
            "--min-relay-peers-to-publish=0",
            "--rest",
            "--rest-address=127.0.0.1",
            f"--rest-port={rest}",
            "--rest-admin",
            f"--rest-relay-cache-capacity={RING_CAPACITY}",
            "--max-msg-size=1MiB",
            "--ip-colocation-limit=0",
            "--log-level=ERROR",
            *options,
        ]
        self.fleet.start(ProcessSpec(name=f"waku-{rest}", command=command, stop_order=StopOrder.PEER))
        processes.wait_for_http(f"http://127.0.0.1:{rest}/debug/v1/info")  # its /health answers 501
        return f"http://127.0.0.1:{rest}"


class RelayReader(WakuNode):
    """Client of a node without a store, which keeps all relayed messages and answers store queries from them."""

    def __init__(self, url: str, client: Connections) -> None:
        super().__init__(url, client)
        self._relayed: list[Any] = []

    async def stored(self, **params: Any) -> list[Any]:
        """Answer a query as nwaku's store would, but without its limit on the page size."""
        self._relayed += await self.read(params["pubsubTopic"])
        topics = str(params.get("contentTopics", "")).split(",")
        fitting = [raw for raw in self._relayed if topics == [""] or raw["contentTopic"] in topics]
        recent = sorted(
            (raw for raw in fitting if raw.get("timestamp", 0) >= params.get("startTime", 0)),
            key=lambda raw: int(raw.get("timestamp", 0)),
        )
        size = int(params["pageSize"])
        return recent[:size] if params.get("ascending", "true") == "true" else recent[-size:]


def say(url: str, method: str, path: str, body: Any) -> Answer:
    """Send a request with a body: bytes as they are, anything else as JSON. nwaku requires the content type."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(url, method, path, content, {"Content-Type": "application/json"})


def address_of(url: str) -> str:
    return str(ask(url, "GET", "/debug/v1/info").body["listenAddresses"][0])


def linked(pair: Pair) -> Pair:
    """Wait until gossip flows in both directions. Earlier messages are lost without an error."""

    async def wait(here: WakuNode, there: WakuNode) -> None:
        await _until_received(here, there)
        await _until_received(there, here)
        await drained(here, there)

    pair.run(wait)
    return pair


async def _until_received(sender: WakuNode, receiver: WakuNode) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        await sender.publish(PUBSUB_TOPIC, replace(new_message(), content_topic=PROBES))
        await asyncio.sleep(PAUSE_SECONDS)
        if await receiver.read(PUBSUB_TOPIC):
            return
    raise AssertionError("the nodes do not gossip")


async def drained(*nodes: WakuNode) -> None:
    """Read the nodes until no more messages come."""
    for node in nodes:
        await received(node, 0)


async def received(node: WakuNode, count: int, *, pubsub_topic: str = PUBSUB_TOPIC) -> list[WakuMessage]:
    """Read a node until it has returned ``count`` messages, without probes, and no more come.

    Return fewer after a timeout.
    """
    raw: list[Any] = []
    deadline, quiet = time.monotonic() + TIMEOUT_SECONDS, 0
    while time.monotonic() < deadline and (len(raw) < count or quiet < 5):
        page = [one for one in await node.read(pubsub_topic) if one["contentTopic"] != PROBES]
        raw += page
        quiet = 0 if page else quiet + 1
        await asyncio.sleep(PAUSE_SECONDS)
    return [from_json(one) for one in raw]


def new_message(payload: bytes | None = None, **fields: Any) -> WakuMessage:
    """Return a new message with the current time."""
    return WakuMessage(payload or os.urandom(16), "/waku/1/0x75b8b8f6/rfc26", time.time_ns(), **fields)
