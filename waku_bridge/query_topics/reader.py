"""The query topics in the memory of a bridge: loaded once per connection, then kept up to date by notifications."""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import psycopg
import structlog

from registrations.statements import ALL_TOPICS, STILL_USED
from waku_bridge.codec import topics
from waku_bridge.metrics import QUERY_TOPICS
from waku_bridge.query_topics.registering import CHANNEL, GONE_CHANNEL, read_notice

log = structlog.get_logger(__name__)

OnNew = Callable[[list[str]], None]
LOWER_BITS = 16
LOWER_MASK = 2**LOWER_BITS - 1
EMPTY = array("H")  # it must never be extended, because all values without a topic share it


class TopicSet:
    """A compact set of topics (4 bytes). It has 65 536 sorted arrays, one for each value of the upper two bytes.

    Each array holds the lower two bytes of its topics. A million topics take some 10 MB, a fifth of a set of integers,
    and no object each. Adding a topic moves a few bytes. An attacker who makes up names for one array makes it longer,
    not slower.

    A lookup needs no lock while another thread adds, because an insertion is one step of the interpreter.
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
        """Replace all topics that begin with ``upper``.

        ``lower`` has the lower two bytes of each topic, big-endian, sorted and without doubles.
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
        """Remove a topic, if it is in the set.

        The array is replaced, because a thread that reads the old one at this moment must not see it shrink.
        """
        if topic in self:
            lower = self._lower[topic >> LOWER_BITS]
            index = bisect_left(lower, topic & LOWER_MASK)
            self._lower[topic >> LOWER_BITS] = lower[:index] + lower[index + 1 :]
            self._size -= 1


class QueryTopics:
    """The query topics of a process: one set for all its readers, which its database connection keeps up to date.

    ``on_new`` is called with the content topics that were added since the first load, each once. It should return at
    once, and must not raise.

    The topic of a user who has unregistered stays: its key hash is kept, and a query for it finds nothing. The topic of
    a user who was erased is removed, so it counts as new if that user registers again.
    """

    def __init__(self, on_new: OnNew | None = None) -> None:
        self._on_new = on_new
        self._topics = TopicSet()
        self._is_loaded = False
        self._notices: list[psycopg.Notify] = []
        self.version = 0  # it grows whenever topics are added

    def __contains__(self, content_topic: str) -> bool:
        topic = topics.number(content_topic)
        return topic is not None and topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    async def load(self, connection: psycopg.AsyncConnection) -> None:
        """Load all topics on a new connection, and listen there for new ones.

        It listens before it loads, so that it misses no topic. Raises psycopg.Error. The set is unchanged then.
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

        PostgreSQL delivers notifications at the end of each statement. Raises psycopg.Error. All topics have to be
        loaded again then.
        """
        if not self._notices:
            return
        notices = self._notices.copy()
        await self._drop(_announced(notices, GONE_CHANNEL), connection)
        del self._notices[: len(notices)]
        self._publish([topic for topic in _announced(notices, CHANNEL) if self._topics.add(topic)])

    async def _drop(self, gone: Sequence[int], connection: psycopg.AsyncConnection) -> None:
        """Remove those of these topics that no name in the database has.

        A topic may belong to another user as well, or to the same user again, which may have been announced before.
        """
        if gone:
            cursor = await connection.execute(STILL_USED, [gone])
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
