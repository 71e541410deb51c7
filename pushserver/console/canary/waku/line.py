"""The canary's connection to the network: it publishes the messages of a client core and reads from stores for it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from kit.http import Connections
from waku_bridge.client.core import Core
from waku_bridge.client.session import CLOCK_SKEW_NS, StoreReader
from waku_bridge.codec.wire import message_hash
from waku_bridge.dialect import NodeError
from waku_bridge.messages import WakuMessage
from waku_bridge.node import WakuNode

TIMEOUT_SECONDS = 5.0

T = TypeVar("T")


class Line:
    """A connection to nodes and stores. It is synchronous, so the caller may read the database between two messages.

    Nodes are used in order. ``before`` is called with the hash of every message before it is published, and
    ``published`` has all these hashes. ``store_error`` is the reason why no store answered the last time, or empty.
    """

    def __init__(
        self, nodes: Sequence[str], stores: Sequence[str], pubsub_topic: str, before: Callable[[bytes], None]
    ) -> None:
        self.published: list[bytes] = []
        self.store_error = ""
        self._pubsub_topic = pubsub_topic
        self._before = before
        self._runner = asyncio.Runner()
        self._connections = Connections(silent_seconds=TIMEOUT_SECONDS)
        since_ns = time.time_ns() - CLOCK_SKEW_NS
        self._nodes = [WakuNode(url, self._connections) for url in nodes]
        asked = [WakuNode(url, self._connections) for url in stores]
        self._readers = [StoreReader(node, pubsub_topic, since_ns=since_ns) for node in asked]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._run(self._connections.close())
        self._runner.close()

    def publish(self, message: WakuMessage) -> None:
        """Publish a message.

        Raises NodeError when no node takes it.
        """
        envelope_hash = message_hash(self._pubsub_topic, message)
        self._before(envelope_hash)
        self.published.append(envelope_hash)
        self._run(self._publish(message))

    def receive(self, core: Core) -> list[WakuMessage]:
        """Return new messages for this client from the first store that answers. Some may be returned twice."""
        return self._run(self._ask_stores(core))

    async def _publish(self, message: WakuMessage) -> None:
        refusals = []
        for node in self._nodes:
            try:
                await node.publish(self._pubsub_topic, message)
            except NodeError as error:
                refusals.append(str(error))
            else:
                return
        raise NodeError("; ".join(refusals) or "no node is configured")

    async def _ask_stores(self, core: Core) -> list[WakuMessage]:
        refusals = []
        for reader in self._readers:
            try:
                new = await reader.new(core.subscriptions(), now_ns=time.time_ns())
            except NodeError as error:
                refusals.append(str(error))
            else:
                self.store_error = ""
                return new
        self.store_error = "; ".join(refusals)
        return []

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)
