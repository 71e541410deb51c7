"""The node behind the REST interface: it takes messages that are published here or come from peers."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from aiohttp import web

from embedded.node.archive import Archive, is_admissible
from embedded.node.gossip import PeerLink, SeenCache
from embedded.node.ring import Ring
from embedded.node.settings import Settings
from waku_bridge.codec.topics import message_hash
from waku_bridge.codec.waku_message import serialize
from waku_bridge.messages import WakuMessage


@dataclass(slots=True)
class Counters:
    published: int = 0  # through REST
    received: int = 0  # from peers
    duplicates: int = 0  # seen within the last two minutes
    drained: int = 0
    evicted: int = 0


class Node:
    """A development node: ring, archive, links to peers and counters."""

    enr_seq = 1

    def __init__(self, settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.settings = settings
        self._clock_ns = clock_ns
        self.ring = Ring(settings.relay_cache_capacity, settings.shards)
        self.archive = Archive(settings.data)
        self.counters = Counters()
        self.peers = [PeerLink(url) for url in settings.peers]
        self._seen = SeenCache()

    def clock_ns(self) -> int:
        return self._clock_ns()

    def subscribe(self, pubsub_topic: str) -> None:
        self.ring.subscribe(pubsub_topic)

    def unsubscribe(self, pubsub_topic: str) -> None:
        self.ring.unsubscribe(pubsub_topic)

    @property
    def ring_capacity(self) -> int:
        return self.settings.relay_cache_capacity

    @property
    def relay_peer_count(self) -> int:
        """Return one, plus the number of peers that answer.

        The one is the network that a lone development node stands for. A real node without peers gives a message to
        nobody. A lone development node would then be useless.
        """
        return 1 + sum(peer.is_reachable for peer in self.peers)

    def is_too_large(self, message: WakuMessage) -> bool:
        return len(serialize(message)) > self.settings.max_message_bytes

    @property
    def too_large(self) -> str:
        return f"Message size exceeded maximum of {self.settings.max_message_bytes} bytes"

    def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Keep a message, and give it to the peers unless they have seen it.

        The node's own ring and archive get a repeated message again (measured on v0.38.1).
        """
        self.counters.published += 1
        self._keep(pubsub_topic, message)
        if self._is_new(pubsub_topic, message):
            self._gossip(pubsub_topic, message)

    def receive(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Take a message of a peer, once."""
        self.counters.received += 1
        if self._is_new(pubsub_topic, message):
            self._keep(pubsub_topic, message)
            self._gossip(pubsub_topic, message)

    def _is_new(self, pubsub_topic: str, message: WakuMessage) -> bool:
        # Gossip identifies a message by all its bytes. The hash leaves out these two fields.
        identity = (message_hash(pubsub_topic, message), message.version, message.ephemeral)
        is_new = self._seen.is_new(identity, self.clock_ns())
        self.counters.duplicates += not is_new
        return is_new

    def _keep(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Add a message to the ring and the archive.

        The ring takes subscribed topics only. The archive takes every topic, because it stands for the network's
        stores, which follow all shards.
        """
        self._add_to_ring(pubsub_topic, message)
        if is_admissible(message, self.clock_ns()):
            self._store(message_hash(pubsub_topic, message), pubsub_topic, message)

    def _add_to_ring(self, pubsub_topic: str, message: WakuMessage) -> None:
        if self.ring.add(pubsub_topic, message):
            self.counters.evicted += 1

    def _store(self, digest: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        self.archive.insert(digest, pubsub_topic, message)

    def _gossip(self, pubsub_topic: str, message: WakuMessage) -> None:
        for peer in self.peers:
            peer.send(pubsub_topic, message)

    def drain(self, pubsub_topic: str) -> list[WakuMessage] | None:
        messages = self.ring.drain(pubsub_topic)
        self.counters.drained += len(messages or ())
        return messages

    def stats(self) -> dict[str, object]:
        """Return the counters and the state of the node, for `/dev/stats`."""
        return {
            **asdict(self.counters),
            "ring": len(self.ring),
            "ring_capacity": self.ring_capacity,
            "archived": self.archive.count(),
            "subscriptions": sorted(self.ring.topics),
            "peers": {peer.url: peer.is_reachable for peer in self.peers},
        }

    def close(self) -> None:
        self.archive.close()


NODE: web.AppKey[Node] = web.AppKey("node", Node)
