"""Collecting what is meant for one client, from the store of a Waku node.

The store and not the relay cache: reading the cache drains it, and on a shared node the server would miss what a client
took. The store is in the order of the senders' clocks, and a message may be archived after a later one: each look
starts over at the same moment, and what was seen is recognised by its hash.
"""

from typing import Any, Generic, TypeVar

from waku_bridge.client.listening import Listener
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.messages import WakuMessage
from waku_bridge.node import BadNodeMessage, WakuNode, from_json

PAGE_SIZE = 100  # nwaku's maximum
# Stores admit messages within 20 s of their clock, so an answer cannot be dated earlier than this before its question.
CLOCK_SKEW_NS = 20 * 10**9

Event = TypeVar("Event")


class Answers(Generic[Event]):
    """What the node's store holds for one client since a moment (``since_ns``, Unix time), each message once."""

    def __init__(self, node: WakuNode, pubsub_topic: str, client: Listener[Event], *, since_ns: int) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._content_topic = topics.content_topic(topics.partitioned_name(client.receiver.pub33))
        self._client = client
        self._since_ns = since_ns
        self._seen: set[bytes] = set()

    async def new(self) -> list[Event]:
        """What arrived since the last call and concerns the client. Raises NodeError."""
        events, start_ns = [], self._since_ns
        while True:
            page = await self._page(start_ns)
            messages = [message for message in map(_read, page) if message]
            events += [event for event in map(self._open, filter(self._is_new, messages)) if event is not None]
            # The next page begins at the last time of this one; a full page within one nanosecond does not happen.
            last_ns = max((message.timestamp_ns for message in messages), default=start_ns)
            if len(page) < PAGE_SIZE or last_ns == start_ns:
                return events
            start_ns = last_ns

    async def _page(self, start_ns: int) -> list[Any]:
        return await self._node.stored(
            pubsubTopic=self._pubsub_topic,
            contentTopics=self._content_topic,
            startTime=start_ns,
            ascending="true",
            pageSize=PAGE_SIZE,
        )

    def _is_new(self, message: WakuMessage) -> bool:
        digest = message_hash(self._pubsub_topic, message)
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True

    def _open(self, message: WakuMessage) -> Event | None:
        """One in 5000 keys shares the topic, so most of what does not open is for somebody else."""
        receiver = self._client.receiver
        try:
            return self._client.receive(decode(message.payload, [receiver], receiver))
        except CodecError:
            return None


def _read(raw: Any) -> WakuMessage | None:
    """One message of a page, or None when the node tells nonsense."""
    try:
        return from_json(raw)
    except BadNodeMessage:
        return None
