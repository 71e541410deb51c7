"""The query topics in the memory of a bridge: loaded once, then kept up to date by notifications."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
import structlog
from django.db import connection

from waku_bridge.metrics import QUERY_TOPICS
from waku_bridge.query_topics.names import content_topic, number
from waku_bridge.query_topics.registering import CHANNEL, GONE_CHANNEL, read_notice
from waku_bridge.query_topics.topic_set import TopicSet

log = structlog.get_logger(__name__)

# In 65 536 rows, sorted by the database: a second for a million topics, where a row each takes ours alone two.
ALL_TOPICS = """
    SELECT topic >> 16, string_agg(substr(int8send(topic), 7), ''::bytea ORDER BY topic)
    FROM (SELECT DISTINCT topic FROM registrations_topickey) AS topics
    GROUP BY topic >> 16
"""
SOMEBODYS = "SELECT topic FROM registrations_topickey WHERE topic = ANY(%s::bigint[])"
# Whoever waits for a database that is gone holds up every reader of the bridge.
CONNECTION_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
}

OnNew = Callable[[list[str]], None]


class QueryTopics:
    """The topics themselves, on a database connection of their own. One for all readers of a process, in any thread.

    ``on_new`` is called with the content topics that were added since the first load, each once, in the thread whose
    refresh found them and before that returns. It should only take note of them, and must not raise.

    The topic of a user who has unregistered stays: its key hash is kept, and a query for it finds nothing. That of one
    who was forgotten goes, so that it is new to us if that user registers again.
    """

    def __init__(self, on_new: OnNew | None = None) -> None:
        self._on_new = on_new
        self._topics = TopicSet()
        self._is_loaded = False
        self._connection: psycopg.Connection | None = None
        self._lock = threading.Lock()

    def __contains__(self, content_topic: str) -> bool:
        topic = number(content_topic)
        return topic is not None and topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def refresh(self) -> None:
        """Take in every topic committed before this call. Raises psycopg.Error while the database is away; then all
        that was known is still known, and the next refresh loads everything again.
        """
        with self._lock:
            try:
                new = self._load() if self._connection is None else self._take_news(self._connection)
            except psycopg.Error:
                self._disconnect()
                raise
            QUERY_TOPICS.set(len(self._topics))
        if new and self._on_new:
            self._on_new([content_topic(topic) for topic in new])

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _load(self) -> list[int]:
        """All of them, and which were not known before. Listens first and loads then, so that nothing falls between."""
        parameters: dict[str, Any] = connection.get_connection_params()
        self._connection = connection.get_new_connection({**CONNECTION_OPTIONS, **parameters})
        self._connection.autocommit = True
        self._connection.execute(f"LISTEN {CHANNEL}")
        self._connection.execute(f"LISTEN {GONE_CHANNEL}")
        topics, new = _all_topics(self._connection), []
        if self._is_loaded:
            new = [topic for topic in topics if topic not in self._topics]
        self._topics, self._is_loaded = topics, True
        log.info("query_topics_loaded", count=len(topics), new=len(new))
        return new

    def _take_news(self, listening: psycopg.Connection) -> list[int]:
        # The server hands out notifications between commands: after this one, all that were committed are here.
        listening.execute("SELECT 1")
        # None is taken in before all are here: after an error between them, the next load finds what is new.
        notices = list(listening.notifies(timeout=0))
        self._drop(_announced(notices, GONE_CHANNEL), listening)
        return [topic for topic in _announced(notices, CHANNEL) if self._topics.add(topic)]

    def _drop(self, gone: Sequence[int], listening: psycopg.Connection) -> None:
        """Unless it is somebody's, another's or again: that may have been announced before."""
        if gone:
            kept = {topic for (topic,) in listening.execute(SOMEBODYS, [gone])}
            for topic in gone:
                if topic not in kept:
                    self._topics.discard(topic)


def _announced(notices: Iterable[psycopg.Notify], channel: str) -> list[int]:
    return [topic for notice in notices if notice.channel == channel for topic in read_notice(notice.payload)]


def _all_topics(database: psycopg.Connection) -> TopicSet:
    topics = TopicSet()
    with psycopg.Cursor(database) as cursor:  # Django's own asks for text only
        for upper, lower in cursor.execute(ALL_TOPICS, binary=True):
            topics.fill(upper, lower)
    return topics
