"""The relay cache: one ring for the whole node. Reading removes messages. The module is pure and has no clock.

Its rules are those of nwaku's `message_cache.nim`, because it exists to lose messages as nwaku does. One is left out:
an eviction scrambles the order of nwaku's pages (measured on v0.38.1), which no reader depends on. All topics share
one capacity. A full ring drops the smallest sender timestamp, on any topic. Content topic subscriptions (auto-sharding)
are not offered, so a message is admitted by its pubsub topic alone.
"""

import heapq
from collections.abc import Iterable

from waku_bridge.messages import WakuMessage


class Ring:
    """Messages in order of arrival, each under the pubsub topic on which it arrived. The capacity may change."""

    def __init__(self, capacity: int, topics: Iterable[str] = ()) -> None:
        self.capacity = capacity
        self.topics = set(topics)
        self._arrivals = 0
        self._messages: dict[WakuMessage, str] = {}
        self._oldest: list[tuple[int, int, WakuMessage]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def unsubscribe(self, topic: str) -> None:
        self.drain(topic)
        self.topics.discard(topic)

    def add(self, topic: str, message: WakuMessage) -> None:
        """Admit a message, and drop others for it.

        An equal message in the ring, on any topic, makes this a no-op: nwaku compares messages without their topic. A
        message never drops itself, however old it is. It is dropped next.
        """
        if topic not in self.topics or message in self._messages:
            return
        while len(self._messages) >= self.capacity and self._oldest:
            del self._messages[heapq.heappop(self._oldest)[2]]
        self._arrivals += 1
        self._messages[message] = topic
        heapq.heappush(self._oldest, (message.timestamp_ns, self._arrivals, message))

    def drain(self, topic: str) -> list[WakuMessage] | None:
        """Remove and return everything on this topic; None when the topic is not subscribed."""
        if topic not in self.topics:
            return None
        drained = [message for message, arrived_on in self._messages.items() if arrived_on == topic]
        for message in drained:
            del self._messages[message]
        if drained:
            self._oldest = [entry for entry in self._oldest if entry[2] in self._messages]
            heapq.heapify(self._oldest)
        return drained
