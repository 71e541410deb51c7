"""The query topics in the memory of a bridge: loaded once, then kept up to date by notifications."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import psycopg
import structlog

from registrations.keys.topic_keys import ALL_TOPICS, SOMEBODYS
from waku_bridge.codec import topics
from waku_bridge.metrics import QUERY_TOPICS
from waku_bridge.query_topics.registering import CHANNEL, GONE_CHANNEL, read_notice

log = structlog.get_logger(__name__)

OnNew = Callable[[list[str]], None]
LOWER_BITS = 16
LOWER_MASK = 2**LOWER_BITS - 1
EMPTY = array("H")  # never extended, as all values without a topic share it


class TopicSet:
    """A set that has, for each value of a topic's upper two bytes, the lower two of its topics, sorted.

    A million topics take some 10 MB, a fifth of what a set of integers takes, and no object each. Adding one moves a
    few bytes. Names made up to fill one of the 65 536 arrays make it longer, not slower.

    Asking needs no lock while another thread adds, because an insertion is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._lower = [EMPTY] * 2**LOWER_BITS
        self._size = 0

    def __contains__(self, topic: int) -> bool:
        lower = self._lower[topic >> LOWER_BITS]
        last = topic & LOWER_MASK
        index = bisect_left(lower, last)
        return index < len(lower) and lower[index] == last

    def __iter__(self) -> Iterator[int]:
        for upper, lower in enumerate(self._lower):
            for last in lower:
                yield upper << LOWER_BITS | last

    def __len__(self) -> int:
        return self._size

    def fill(self, upper: int, lower: bytes) -> None:
        """Take in all topics that begin with ``upper``, by their lower two bytes (big-endian),
        sorted and none twice.
        """
        numbers = array("H", lower)
        if sys.byteorder == "little":
            numbers.byteswap()
        self._size += len(numbers) - len(self._lower[upper])
        self._lower[upper] = numbers

    def add(self, topic: int) -> bool:
        """Add a topic, and return whether it is new."""
        lower = self._lower[topic >> LOWER_BITS]
        last = topic & LOWER_MASK
        index = bisect_left(lower, last)
        if index < len(lower) and lower[index] == last:
            return False
        if lower:
            lower.insert(index, last)
        else:
            self._lower[topic >> LOWER_BITS] = array("H", [last])
        self._size += 1
        return True

    def discard(self, topic: int) -> None:
        """Remove a topic, if it is in.

        The array is replaced, because a thread that reads the old one at this moment must not see it shrink.
        """
        if topic in self:
            lower = self._lower[topic >> LOWER_BITS]
            index = bisect_left(lower, topic & LOWER_MASK)
            self._lower[topic >> LOWER_BITS] = lower[:index] + lower[index + 1 :]
            self._size -= 1


class QueryTopics:
    """The query topics of a process, one set for all its readers, kept up to date by the connection it listens on.

    ``on_new`` is called with the content topics that were added since the first load, each once. It should only take
    note of them, and must not raise.

    The topic of a user who has unregistered stays: its key hash is kept, and a query for it finds nothing. The topic of
    a user who was erased goes, so that it is new to us if that user registers again.
    """

    def __init__(self, on_new: OnNew | None = None) -> None:
        self._on_new = on_new
        self._topics = TopicSet()
        self._is_loaded = False
        self._notices: list[psycopg.Notify] = []
        self.version = 0  # changes whenever there are more topics

    def __contains__(self, content_topic: str) -> bool:
        topic = topics.number(content_topic)
        return topic is not None and topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    async def load(self, connection: psycopg.AsyncConnection) -> None:
        """Take in all topics from a new connection, and take in from now on what is added.

        It listens first and loads then, so that nothing is missed between. Raises psycopg.Error, and then all that was
        known is still known.
        """
        self._notices = []
        connection.add_notify_handler(self._notices.append)
        await connection.execute(f"LISTEN {CHANNEL}".encode())
        await connection.execute(f"LISTEN {GONE_CHANNEL}".encode())
        loaded = await _all_topics(connection)
        new = [topic for topic in loaded if topic not in self._topics] if self._is_loaded else []
        self._topics = loaded
        self._is_loaded = True
        self.version += 1
        log.info("query_topics_loaded", count=len(loaded), new=len(new))
        self._publish(new)

    async def take_news(self, connection: psycopg.AsyncConnection) -> None:
        """Take in every topic that was committed before the last statement of the connection was sent.

        PostgreSQL hands out notifications with the end of each statement. Raises psycopg.Error, and then all topics
        have to be loaded again.
        """
        if not self._notices:
            return
        notices = self._notices.copy()
        await self._drop(_announced(notices, GONE_CHANNEL), connection)
        del self._notices[: len(notices)]
        self._publish([topic for topic in _announced(notices, CHANNEL) if self._topics.add(topic)])

    async def _drop(self, gone: Sequence[int], connection: psycopg.AsyncConnection) -> None:
        """Remove topics that no name has any more. One may be another user's, or the same user's again: that may have
        been announced before.
        """
        if gone:
            cursor = await connection.execute(SOMEBODYS, [gone])
            kept = {topic for (topic,) in await cursor.fetchall()}
            for topic in gone:
                if topic not in kept:
                    self._topics.discard(topic)

    def _publish(self, new: Sequence[int]) -> None:
        QUERY_TOPICS.set(len(self._topics))
        self.version += bool(new)
        if new and self._on_new:
            self._on_new([topics.of_number(topic) for topic in new])


def _announced(notices: Iterable[psycopg.Notify], channel: str) -> list[int]:
    return [topic for notice in notices if notice.channel == channel for topic in read_notice(notice.payload)]


async def _all_topics(connection: psycopg.AsyncConnection) -> TopicSet:
    loaded = TopicSet()
    cursor = await connection.execute(ALL_TOPICS, binary=True)
    for upper, lower in await cursor.fetchall():
        loaded.fill(upper, lower)
    return loaded
