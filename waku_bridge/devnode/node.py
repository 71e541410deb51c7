"""The node behind the REST interface: what happens to a message that is published here or gossiped to us."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from aiohttp import web

from waku_bridge.codec.waku_message import message_hash, serialize
from waku_bridge.devnode.archive import Archive, is_admissible
from waku_bridge.devnode.faults import Faults
from waku_bridge.devnode.gossip import PeerLink, SeenCache
from waku_bridge.devnode.ring import Ring
from waku_bridge.devnode.settings import Settings
from waku_bridge.messages import WakuMessage


@dataclass(slots=True)
class Counters:
    published: int = 0  # through REST
    received: int = 0  # from peers
    duplicates: int = 0  # known for less than two minutes
    drained: int = 0
    evicted: int = 0
    restarts: int = 0


class Node:
    def __init__(self, settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.settings = settings
        self._clock_ns = clock_ns
        self.ring = Ring(settings.relay_cache_capacity, settings.shards)
        self.archive = Archive(settings.data)
        self.faults = Faults()
        self.counters = Counters()
        self.peers = [PeerLink(url) for url in settings.peers]
        self._seen = SeenCache()
        self._deaf: set[str] = set()
        self._is_closed = False

    def clock_ns(self) -> int:
        return self._clock_ns() + self.faults.clock_skew_ms * 10**6

    def subscribe(self, pubsub_topic: str) -> bool:
        """Whether that worked. nwaku marks the topic before it joins: a failure is not told again, and not repaired."""
        if not self.ring.is_subscribed(pubsub_topic) and self.faults.strikes("subscribe_fails"):
            self._deaf.add(pubsub_topic)
            self.ring.subscribe(pubsub_topic)
            return False
        self.ring.subscribe(pubsub_topic)
        return True

    def unsubscribe(self, pubsub_topic: str) -> None:
        self._deaf.discard(pubsub_topic)
        self.ring.unsubscribe(pubsub_topic)

    @property
    def ring_capacity(self) -> int:
        return self.faults.ring_capacity_messages or self.settings.relay_cache_capacity

    def resize_ring(self) -> None:
        self.counters.evicted += self.ring.resize(self.ring_capacity)

    @property
    def relay_peer_count(self) -> int:
        """One, plus the peers that answer.

        The one is the network that a lone development node stands for. A real node without peers refuses every
        lightpush with 505, which would make this one useless on its own; the `no_peers` fault brings that back.
        """
        return 1 + sum(peer.is_reachable for peer in self.peers)

    def is_too_large(self, message: WakuMessage) -> bool:
        return len(serialize(message)) > self.settings.max_message_bytes

    @property
    def too_large(self) -> str:
        return f"Message size exceeded maximum of {self.settings.max_message_bytes} bytes"

    def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        self.counters.published += 1
        self._accept(pubsub_topic, message)

    def receive(self, pubsub_topic: str, message: WakuMessage) -> None:
        self.counters.received += 1
        self._accept(pubsub_topic, message)

    def _accept(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Deliver a message once: to the ring, the archive and the peers.

        The ring takes subscribed topics only. The archive takes every topic, because it stands for the network's
        stores, which follow all shards.
        """
        digest, now_ns = message_hash(pubsub_topic, message), self.clock_ns()
        # Gossip identifies a message by all its bytes; the hash leaves these two fields out.
        if not self._seen.is_new((digest, message.version, message.ephemeral), now_ns):
            self.counters.duplicates += 1
            return
        if pubsub_topic not in self._deaf and self.ring.add(pubsub_topic, message):
            self.counters.evicted += 1
        if is_admissible(message, now_ns) and not self.faults.strikes("archive_refuses"):
            self._store(digest, pubsub_topic, message)
        if self.peers and not self.faults.strikes("gossip_lost"):
            self._gossip(pubsub_topic, message)

    def _gossip(self, pubsub_topic: str, message: WakuMessage) -> None:
        for peer in self.peers:
            if self.faults.gossip_delay_ms:
                delay = self.faults.gossip_delay_ms / 1000
                asyncio.get_running_loop().call_later(delay, peer.send, pubsub_topic, message)
            else:
                peer.send(pubsub_topic, message)

    def _store(self, digest: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        if self.faults.archive_delay_ms:
            delay = self.faults.archive_delay_ms / 1000
            asyncio.get_running_loop().call_later(delay, self._store_late, digest, pubsub_topic, message)
        else:
            self.archive.insert(digest, pubsub_topic, message)

    def _store_late(self, digest: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        if not self._is_closed:
            self.archive.insert(digest, pubsub_topic, message)

    def drain(self, pubsub_topic: str) -> list[WakuMessage] | None:
        messages = self.ring.drain(pubsub_topic)
        self.counters.drained += len(messages or ())
        return messages

    def restart(self) -> None:
        """Forget what a restarted node forgets: the ring and every subscription that `--shard` does not bring back."""
        self.ring = Ring(self.ring_capacity, self.settings.shards)
        self._deaf.clear()
        self._seen.clear()
        self.counters.restarts += 1

    def forget_store(self) -> None:
        """Lose the whole archive, as when its volume was not kept. Cursors into it are gone, too."""
        self.archive.forget_before(2**63 - 1)

    def stats(self) -> dict[str, object]:
        return {
            **asdict(self.counters),
            "ring": len(self.ring),
            "ring_capacity": self.ring_capacity,
            "archived": self.archive.count(),
            "subscriptions": sorted(self.ring.topics),
            "peers": {peer.url: peer.is_reachable for peer in self.peers},
        }

    def close(self) -> None:
        self._is_closed = True
        self.archive.close()


NODE: web.AppKey[Node] = web.AppKey("node", Node)
