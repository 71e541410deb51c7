"""Simulated network: Waku nodes with relay caches and stores, and a gateway, all of which fail at random.

Caches and stores follow the rules of the development node. The seed decides which message reaches which node, how late
and whether at all.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from embedded.node.node import Node, Settings
from embedded.node.wire import message_fields, read_query
from notifications.messages import Outcome, Push, Result
from tests.rig.conversation import PUBSUB_TOPIC
from tests.rig.delivering import RecordingGateway
from tests.simulation.agenda import Agenda
from waku_bridge.dialect import NodeError, NotSubscribed, StorePage, Unreachable, read_store_page
from waku_bridge.messages import WakuMessage

RING_CAPACITY = 50


class SimulatedNode:
    """One node, with the interface of `WakuNode`."""

    def __init__(self, number: int, agenda: Agenda, random: Random, network: "Network") -> None:
        self.url = f"http://node{number}.test:8645"
        self.name = f"node{number}.test:8645"
        self._agenda = agenda
        self._random = random
        self._network = network
        settings = Settings(relay_cache_capacity=RING_CAPACITY)
        self._node = Node(settings, clock_ns=self._agenda.now_ns)

    def restart(self) -> None:
        """Lose subscriptions and the cache. The store is on disk and stays."""
        self._node.restart()

    def receive(self, message: WakuMessage, *, is_relayed: bool) -> None:
        """Receive a message from a peer: into the cache, or only into the store when the relay missed it."""
        if is_relayed:
            self._node.receive(PUBSUB_TOPIC, message)
        else:
            self._node.store(PUBSUB_TOPIC, message)

    def has(self, known_as: bytes) -> bool:
        query = read_query({"hashes": f"0x{known_as.hex()}", "pageSize": "1"})
        return bool(self._node.archive.find(query)["messages"])

    @property
    def skew_seconds(self) -> float | None:
        return None

    async def subscribe(self, pubsub_topic: str) -> None:
        await self._travel()
        self._node.subscribe(pubsub_topic)

    async def read(self, pubsub_topic: str) -> list[Any]:
        await self._travel()
        messages = self._node.ring.drain(pubsub_topic)
        if messages is None:
            raise NotSubscribed(self.name)
        await self._return()
        return [message_fields(message) for message in messages]

    async def publish(self, _pubsub_topic: str, message: WakuMessage) -> None:
        await self._travel()
        self._network.spread(message, first=self)
        await self._return()

    async def known(self, hashes: Sequence[bytes]) -> set[bytes]:
        await self._travel()
        found = {each for each in hashes if self.has(each)}
        await self._return()
        return found

    async def store_page(self, **params: Any) -> StorePage:
        await self._travel()
        page = self._node.archive.find(read_query({name: str(value) for name, value in params.items()}))
        await self._return()
        return read_store_page(page)

    async def _travel(self) -> None:
        """Let a request reach the node, unless the node is away."""
        await asyncio.sleep(self._network.delay())
        if self.url in self._network.away:
            raise Unreachable(self.name)

    async def _return(self) -> None:
        """Let the answer reach the server, unless it is lost on the way."""
        if self._network.is_lost():
            raise NodeError(f"{self.name} answered nobody")
        await asyncio.sleep(self._network.delay())

    def close(self) -> None:
        self._node.close()


class Network:
    """All nodes. While the network is `troubled`, they are away at times, and answers and messages get lost."""

    def __init__(self, agenda: Agenda, random: Random, number: int) -> None:
        self._agenda = agenda
        self._random = random
        self.is_troubled = True
        self.away: set[str] = set()
        self.nodes = [SimulatedNode(index, agenda, random, self) for index in range(number)]
        self.spread_messages: list[WakuMessage] = []
        self.listeners: list[Any] = []

    def delay(self) -> float:
        return self._random.uniform(0.001, 0.02) if self._random.random() < 0.97 else self._random.uniform(0.1, 4.0)

    def is_lost(self) -> bool:
        return self.is_troubled and self._random.random() < 0.03

    def spread(self, message: WakuMessage, *, first: SimulatedNode | None = None) -> None:
        """Spread a message by gossip. Each node relays it soon or not at all; at least one of the stores has it in the
        end.
        """
        self.spread_messages.append(message)
        for listener in self.listeners:
            listener(message)
        keeper = first or self._random.choice(self.nodes)
        for node in self.nodes:
            is_relayed = not self.is_troubled or self._random.random() < 0.8
            if is_relayed or node is keeper or self._random.random() < 0.5:
                self._agenda.add(self.delay(), lambda n=node, r=is_relayed: n.receive(message, is_relayed=r))

    def trouble(self) -> None:
        """Take a node away for a while, or restart it."""
        node = self._random.choice(self.nodes)
        if self._random.random() < 0.4:
            node.restart()
            return
        self.away.add(node.url)
        self._agenda.add(self._random.uniform(0.2, 8.0), lambda: self.away.discard(node.url))

    def heal(self) -> None:
        self.is_troubled = False
        self.away.clear()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Providers:
    """Apple and Google behind all gateways. ``dead`` has the addresses that they refuse as dead."""

    def __init__(self, agenda: Agenda, random: Random) -> None:
        self._agenda = agenda
        self._random = random
        self.is_troubled = True
        self.is_unavailable = False
        self.dead: set[bytes] = set()

    def trouble(self) -> None:
        """Refuse all pushes for a while."""
        self.is_unavailable = True
        self._agenda.add(self._random.uniform(1.0, 10.0), self._recover)

    def _recover(self) -> None:
        self.is_unavailable = False

    def heal(self) -> None:
        self.is_troubled = self.is_unavailable = False

    def latency(self) -> float:
        if self.is_troubled and self._random.random() < 0.06:
            return self._random.uniform(3.0, 60.0)  # longer than a lease
        return self._random.uniform(0.005, 0.3)

    def answer(self, push: Push) -> Result:
        if push.address in self.dead:
            return Result(Outcome.DEAD, "unregistered", latency_ms=5)
        if self.is_unavailable or (self.is_troubled and self._random.random() < 0.15):
            return self._random.choice(FAILURES)
        return Result(Outcome.DELIVERED, latency_ms=5)


FAILURES = (
    Result(Outcome.TRANSIENT, "unreachable"),
    Result(Outcome.TRANSIENT, "too_many_requests", retry_after_seconds=5),
    Result(Outcome.AMBIGUOUS, "timeout"),
    Result(Outcome.AMBIGUOUS, "cut_off"),
    Result(Outcome.CONFIG, "bad_credentials"),
)


class SimulatedGateway(RecordingGateway):
    """Gateway of one process. ``note`` is called with every push that leaves the process."""

    def __init__(self, providers: Providers, note: Callable[[Push], None], answered: Callable[[Push, Result], None]):
        super().__init__(providers.answer)
        self._providers = providers
        self._note = note
        self._answered = answered

    async def send(self, push: Push) -> Result:
        self._note(push)
        result = Result(Outcome.AMBIGUOUS)  # unless the answer comes before the server's timeout
        try:
            await asyncio.sleep(self._providers.latency())
            result = self.answer(push)
        finally:
            self._answered(push, result)
        return result
