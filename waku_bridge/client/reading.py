"""The store reader of a client: it reads the messages for one client from the store of a Waku node.

It does not read the relay cache, because that empties the cache, and on a shared node the server would miss messages.
The store is in the order of the senders' clocks, and a message may be archived after a later one. So each query goes
back a minute, and messages that were seen are recognised by their hashes.
"""

from collections.abc import Iterable
from typing import Any

from waku_bridge.codec.topics import message_hash
from waku_bridge.messages import WakuMessage
from waku_bridge.node import BadNodeMessage, WakuNode, from_json

PAGE_SIZE = 100  # nwaku's maximum
MAX_TOPICS = 10  # nwaku's maximum on a page after the first
# Stores accept messages within 20 s of their clock, so an answer is dated at most this long before its question.
CLOCK_SKEW_NS = 20 * 10**9
# How late a message may arrive: the skew, twice, and the time of archiving.
OVERLAP_NS = 60 * 10**9


class StoreReader:
    """A reader of a store's messages on some content topics since ``since_ns`` (Unix time), each message once."""

    def __init__(self, node: WakuNode, pubsub_topic: str, *, since_ns: int) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._begin_ns = since_ns
        self._since_ns = since_ns
        self._seen: dict[bytes, int] = {}  # timestamp by hash

    async def new(self, content_topics: Iterable[str], *, now_ns: int) -> list[WakuMessage]:
        """Return the messages that arrived since the last call.

        Raises NodeError. The next call then starts at the same time as this one.
        """
        topics = sorted(content_topics)
        groups = [topics[begin : begin + MAX_TOPICS] for begin in range(0, len(topics), MAX_TOPICS)]
        messages = [message for group in groups for message in await self._since(",".join(group))]
        by_hash = {message_hash(self._pubsub_topic, message): message for message in messages}
        fresh = {digest: message for digest, message in by_hash.items() if digest not in self._seen}
        self._since_ns = max(self._begin_ns, now_ns - OVERLAP_NS)
        self._seen |= {digest: message.timestamp_ns for digest, message in fresh.items()}
        self._seen = {digest: at_ns for digest, at_ns in self._seen.items() if at_ns >= self._since_ns}
        return list(fresh.values())

    async def history(self, content_topic: str) -> list[WakuMessage]:
        """Return the latest page of one content topic, oldest first, also messages that were seen.

        Raises NodeError.
        """
        page = await self._page(content_topic, ascending="false")
        return sorted(filter(None, map(_read, page)), key=lambda message: message.timestamp_ns)

    async def _since(self, content_topics: str) -> list[WakuMessage]:
        """Return the messages of all pages.

        A page begins at the last time of the previous one. A full page within one nanosecond is the end.
        """
        found: list[WakuMessage] = []
        start_ns = self._since_ns
        while True:
            page = await self._page(content_topics, ascending="true", startTime=start_ns)
            messages = [message for message in map(_read, page) if message]
            found += messages
            last_ns = max((message.timestamp_ns for message in messages), default=start_ns)
            if len(page) < PAGE_SIZE or last_ns == start_ns:
                return found
            start_ns = last_ns

    async def _page(self, content_topics: str, **query: Any) -> list[Any]:
        return await self._node.stored(
            pubsubTopic=self._pubsub_topic, contentTopics=content_topics, pageSize=PAGE_SIZE, **query
        )


def _read(raw: Any) -> WakuMessage | None:
    """Return one message of a page, or None for an entry that is no message."""
    try:
        return from_json(raw)
    except BadNodeMessage:
        return None
