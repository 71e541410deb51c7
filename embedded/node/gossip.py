"""The replacement of gossipsub: a memory of messages seen, and links to other development nodes.

Gossip is best effort: a batch that a peer does not take is dropped. Readers then find the messages in the store of the
other nodes, as on the real network.
"""

import asyncio
from collections import deque
from collections.abc import Hashable

import aiohttp
import orjson
import structlog

from embedded.node.envelope import relay_fields
from waku_bridge.messages import WakuMessage

SEEN_FOR_NS = 120 * 10**9
MAX_WAITING = 10_000
BATCH = 200
PEER_TIMEOUT = aiohttp.ClientTimeout(total=5)

log = structlog.get_logger()


class SeenCache:
    """The messages of the last two minutes, so that gossip delivers each of them once."""

    def __init__(self) -> None:
        self._seen_at: dict[Hashable, int] = {}

    def is_new(self, message_id: Hashable, now_ns: int) -> bool:
        """Return whether the message is new, and remember it."""
        self._forget(now_ns - SEEN_FOR_NS)
        if message_id in self._seen_at:
            return False
        self._seen_at[message_id] = now_ns
        return True

    def _forget(self, before_ns: int) -> None:
        while self._seen_at and self._seen_at[oldest := next(iter(self._seen_at))] <= before_ns:
            del self._seen_at[oldest]


class PeerLink:
    """One-way link to another development node. That node names this one as its peer for the way back."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.is_reachable = True
        self._waiting: deque[tuple[str, WakuMessage]] = deque(maxlen=MAX_WAITING)
        self._has_work = asyncio.Event()

    def send(self, pubsub_topic: str, message: WakuMessage) -> None:
        self._waiting.append((pubsub_topic, message))
        self._has_work.set()

    async def run(self) -> None:
        """Push waiting messages to the peer, batch by batch, without end."""
        async with aiohttp.ClientSession(timeout=PEER_TIMEOUT) as session:
            while True:
                await self._has_work.wait()
                await self._push(session, self._take_batch())
                if not self._waiting:
                    self._has_work.clear()

    def _take_batch(self) -> bytes:
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
        return orjson.dumps([{"pubsubTopic": topic, "message": relay_fields(message)} for topic, message in taken])

    async def _push(self, session: aiohttp.ClientSession, batch: bytes) -> None:
        try:
            async with session.post(f"{self.url}/dev/gossip", data=batch) as reply:
                reply.raise_for_status()
            self.is_reachable = True
        except (aiohttp.ClientError, TimeoutError) as exc:
            if self.is_reachable:
                log.warning("peer_unreachable", peer=self.url, error=type(exc).__name__)
            self.is_reachable = False
