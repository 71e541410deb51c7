"""The query topics in the memory of a bridge: loaded once, then kept up to date by notifications."""

from collections.abc import Callable, Iterable, Sequence

import psycopg
import structlog

from registrations.topic_keys import ALL_TOPICS, SOMEBODYS
from waku_bridge.metrics import QUERY_TOPICS
from waku_bridge.query_topics.registering import CHANNEL, GONE_CHANNEL, read_notice
from waku_bridge.query_topics.topic_set import TopicSet, content_topic, number

log = structlog.get_logger(__name__)

OnNew = Callable[[list[str]], None]


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
        topic = number(content_topic)
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
        topics = await _all_topics(connection)
        new = [topic for topic in topics if topic not in self._topics] if self._is_loaded else []
        self._topics = topics
        self._is_loaded = True
        self.version += 1
        log.info("query_topics_loaded", count=len(topics), new=len(new))
        self._tell(new)

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
        self._tell([topic for topic in _announced(notices, CHANNEL) if self._topics.add(topic)])

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

    def _tell(self, new: Sequence[int]) -> None:
        QUERY_TOPICS.set(len(self._topics))
        self.version += bool(new)
        if new and self._on_new:
            self._on_new([content_topic(topic) for topic in new])


def _announced(notices: Iterable[psycopg.Notify], channel: str) -> list[int]:
    return [topic for notice in notices if notice.channel == channel for topic in read_notice(notice.payload)]


async def _all_topics(connection: psycopg.AsyncConnection) -> TopicSet:
    topics = TopicSet()
    cursor = await connection.execute(ALL_TOPICS, binary=True)
    for upper, lower in await cursor.fetchall():
        topics.fill(upper, lower)
    return topics
