"""The node behind the REST interface: messages that are published here or come from peers, its cache and its faults.

Gossip is a memory of messages seen, and links to other development nodes. It is best effort: readers find what a peer
did not take in the store of the other nodes, as on the real network.
"""

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from embedded.dev_server import Switches
from embedded.node.store import Archive
from embedded.node.wire import message_fields
from waku_bridge.codec.wire import message_hash
from waku_bridge.messages import WakuMessage

RELAY_CACHE_CAPACITY = 50
MAX_MESSAGE_BYTES = 1024 * 1024  # Status' fleet; nwaku's own default is 150 KiB
ADMISSION_NS = 20 * 10**9
SEEN_FOR_NS = 120 * 10**9
RETENTION_NS = 172_800 * 10**9  # nwaku's default
MAX_WAITING = 10_000
BATCH = 200
PEER_TIMEOUT = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a node at its start, by the names of nwaku's command line where it has them.

    `shards` are pubsub topics that are subscribed from the start and again after a restart. `data` is the SQLite file
    of the store. Without it the store is lost when the process ends.
    """

    data: Path | None = None
    relay_cache_capacity: int = RELAY_CACHE_CAPACITY
    shards: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    max_message_bytes: int = MAX_MESSAGE_BYTES


@dataclass(slots=True)
class Faults(Switches):
    """Faults that real nodes show once a month. A number replaces a value of the node or delays something."""

    starting: int = False  # all but health, info and version is 404, as while nwaku mounts its protocols
    reply_delay_ms: int = 0  # every answer, after its work was done
    clock_skew_ms: int = 0  # its clock is ahead of ours, or behind when negative: admission, Date and filled-in times
    ring_capacity_messages: int = 0
    read_fails: int = False  # relay GET answers 500 and drains nothing
    cut_after_drain: int = False  # relay GET: the messages are gone, the connection breaks instead of an answer
    subscribe_fails: int = False  # 500, and then only OK and empty pages until the topic is unsubscribed
    cut_after_publish: int = False  # relay POST: the message is sent, and the connection breaks
    no_peers: int = False  # relay POST answers OK, and the message stays in this node. Health reports it all the while
    gossip_lost: int = False  # a message does not reach the peers, now or later. At both nodes it is a partition
    archive_refuses: int = False  # the message is delivered live but never stored
    archive_delay_ms: int = 0  # a message is stored this much later, as by store-sync
    store_no_peer: int = False  # 412
    store_rate_limited: int = False  # 429
    store_too_many_requests: int = False  # 500 with TOO_MANY_REQUESTS, as a remote store's rate limit really arrives
    store_cursor_not_found: int = False  # 500, on pages with a cursor only
    store_cursor_stuck: int = False  # a page with a cursor repeats the page before
    store_cursor_circles: int = False  # the last page has the cursor of the first
    store_page_empty: int = False  # a page with a cursor is empty and has none
    store_duplicates: int = False  # the page has its last message twice


class Ring:
    """The relay cache: one ring for the whole node, whose capacity may change. Reading removes messages.

    Its rules are those of nwaku's `message_cache.nim`, because it exists to lose messages as nwaku does. One is left
    out: an eviction scrambles the order of nwaku's pages (measured on v0.38.1), which no reader depends on. All topics
    share one capacity. A full ring drops the smallest sender timestamp, on any topic. Content topic subscriptions
    (auto-sharding) are not offered, so a message is admitted by its pubsub topic alone.
    """

    def __init__(self, capacity: int, topics: Iterable[str] = ()) -> None:
        self.capacity = capacity
        self.topics = set(topics)
        self._messages: dict[WakuMessage, str] = {}  # with their topics, in the order of their arrival
        self._by_age: list[WakuMessage] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, topic: str, message: WakuMessage) -> None:
        """Admit a message, and drop others for it.

        An equal message in the ring, on any topic, makes this a no-op: nwaku compares messages without their topic. A
        message never drops itself, however old it is. It is dropped next.
        """
        if topic not in self.topics or message in self._messages:
            return
        while len(self._messages) >= self.capacity and self._messages:
            del self._messages[self._by_age.pop(0)]
        self._messages[message] = topic
        insort(self._by_age, message, key=lambda kept: kept.timestamp_ns)

    def drain(self, topic: str) -> list[WakuMessage] | None:
        """Remove and return everything on this topic; None when the topic is not subscribed."""
        if topic not in self.topics:
            return None
        drained = [message for message, arrived_on in self._messages.items() if arrived_on == topic]
        for message in drained:
            del self._messages[message]
        self._by_age = [message for message in self._by_age if message in self._messages]
        return drained


class Node:
    """A development node: ring, archive and links to peers."""

    def __init__(self, settings: Settings, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.settings = settings
        self.faults = Faults()
        self.archive = Archive(settings.data)
        self.peers: dict[str, asyncio.Queue[object]] = {url: asyncio.Queue(MAX_WAITING) for url in settings.peers}
        self.published = 0
        self.enr_seq = 0
        self._clock_ns = clock_ns
        self._is_closed = False
        self.restart()

    def restart(self) -> None:
        """Forget what a restarted node forgets: the ring and every subscription that `--shard` does not bring back."""
        self.ring = Ring(self.settings.relay_cache_capacity, self.settings.shards)
        self.enr_seq += 1
        self._deaf: set[str] = set()
        self._seen_at: dict[Hashable, int] = {}

    def clock_ns(self) -> int:
        return self._clock_ns() + self.faults.clock_skew_ms * 10**6

    def subscribe(self, pubsub_topic: str) -> bool:
        """Return whether the topic could be joined.

        nwaku marks the topic before it joins (by its source), so it neither reports a failure again nor repairs it.
        """
        is_lost = pubsub_topic not in self.ring.topics and self.faults.strikes("subscribe_fails")
        self.ring.topics.add(pubsub_topic)
        if is_lost:
            self._deaf.add(pubsub_topic)
        return not is_lost

    def unsubscribe(self, pubsub_topic: str) -> None:
        self._deaf.discard(pubsub_topic)
        self.ring.drain(pubsub_topic)
        self.ring.topics.discard(pubsub_topic)

    def publish(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Keep a message, and give it to the peers unless they have seen it.

        The node's own ring and archive get a repeated message again (measured on v0.38.1).
        """
        self.published += 1
        self._keep(pubsub_topic, message)
        if self._is_new(pubsub_topic, message):
            self._gossip(pubsub_topic, message)

    def receive(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Take a message of a peer, once."""
        if self._is_new(pubsub_topic, message):
            self._keep(pubsub_topic, message)
            self._gossip(pubsub_topic, message)

    def _is_new(self, pubsub_topic: str, message: WakuMessage) -> bool:
        """Return whether gossip has not delivered a message in the last two minutes, and remember it."""
        seen, now_ns = self._seen_at, self.clock_ns()
        while seen and seen[oldest := next(iter(seen))] <= now_ns - SEEN_FOR_NS:
            del seen[oldest]
        # Gossip identifies a message by all its bytes. The hash leaves out these two fields.
        identity = message_hash(pubsub_topic, message), message.version, message.ephemeral
        if is_new := identity not in seen:
            seen[identity] = now_ns
        return is_new

    def _keep(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Add a message to the ring and the archive.

        The ring takes subscribed topics only. The archive takes every topic, because it stands for the network's
        stores, which follow all shards. It takes nothing ephemeral, and nothing more than 20 s away from its clock.
        """
        self.ring.capacity = self.faults.ring_capacity_messages or self.settings.relay_cache_capacity
        if pubsub_topic not in self._deaf:
            self.ring.add(pubsub_topic, message)
        is_in_time = abs(message.timestamp_ns - self.clock_ns()) <= ADMISSION_NS
        if message.ephemeral or not is_in_time or self.faults.strikes("archive_refuses"):
            return
        if delay_ms := self.faults.archive_delay_ms:
            asyncio.get_running_loop().call_later(delay_ms / 1000, self.store, pubsub_topic, message)
        else:
            self.store(pubsub_topic, message)

    def store(self, pubsub_topic: str, message: WakuMessage) -> None:
        """Archive a message, and forget those beyond the retention, whose cursors become invalid."""
        if not self._is_closed:
            self.archive.insert(message_hash(pubsub_topic, message), pubsub_topic, message)
            self.archive.forget_before(self.clock_ns() - RETENTION_NS)

    def _gossip(self, pubsub_topic: str, message: WakuMessage) -> None:
        if self.peers and not (self.faults.strikes("no_peers") or self.faults.strikes("gossip_lost")):
            for waiting in self.peers.values():
                with suppress(asyncio.QueueFull):
                    waiting.put_nowait({"pubsubTopic": pubsub_topic, "message": message_fields(message)})

    async def push_to(self, peer: str) -> None:
        """Push waiting messages to a peer, batch by batch, without end. A batch that it does not take is dropped.

        The link is one-way. The peer names this node as its own peer for the way back.
        """
        waiting = self.peers[peer]
        async with aiohttp.ClientSession(timeout=PEER_TIMEOUT) as session:
            while True:
                batch = [await waiting.get()]
                batch += [waiting.get_nowait() for _ in range(min(waiting.qsize(), BATCH))]
                with suppress(aiohttp.ClientError, TimeoutError):
                    (await session.post(f"{peer.rstrip('/')}/dev/gossip", data=orjson.dumps(batch))).release()

    def close(self) -> None:
        self._is_closed = True
        self.archive.close()


NODE: web.AppKey[Node] = web.AppKey("node", Node)
