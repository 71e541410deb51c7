"""The query topics we listen to: a set of 4-byte topics in memory, and the database behind it.

A registration announces its topic in the transaction that stores it, so a reader that looks after fetching a page knows
every topic whose registration was answered before the page was fetched.
"""

import contextlib
from collections.abc import Iterable
from datetime import datetime

import psycopg
import structlog
from django.db import connection

from registrations.encryption import DecryptionError, Purpose
from registrations.keyring import keyring
from registrations.models import TopicKey
from waku_bridge.codec import topics

log = structlog.get_logger(__name__)

CHANNEL = "query_topics"
PREFIX, SUFFIX = "/waku/1/0x", "/rfc26"
CONTENT_TOPIC_LENGTH = len(PREFIX) + 8 + len(SUFFIX)


def number(content_topic: str) -> int | None:
    """The 4-byte topic in a content topic of the canonical form, as an integer.

    Other spellings of a number (capitals, signs, underscores) are other topics to Waku, hence to us.
    """
    if len(content_topic) != CONTENT_TOPIC_LENGTH or not content_topic.startswith(PREFIX):
        return None
    try:
        topic = int(content_topic[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None
    is_canonical = topic >= 0 and content_topic == f"{PREFIX}{topic:08x}{SUFFIX}"
    return topic if is_canonical else None


def listen_to(public_key_hashes: Iterable[bytes], *, now: datetime) -> None:
    """Add the query topics of these key hashes (64 bytes each), and tell the bridges when the transaction commits.

    In one order everywhere, so that two transactions with the same new names do not dead-lock.
    """
    names = [topics.query_name(public_key_hash) for public_key_hash in sorted(public_key_hashes)]
    if not names:
        return
    rows = [TopicKey(name=name, topic=int.from_bytes(topics.topic(name)), created_at=now) for name in names]
    TopicKey.objects.bulk_create(rows, ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, ",".join(str(row.topic) for row in rows)])


def load_keys(content_topics: Iterable[str]) -> dict[str, list[bytes]]:
    """Symmetric keys (32 bytes) by content topic; several names may share one. Derives those that nobody used yet."""
    numbered = ((number(content_topic), content_topic) for content_topic in content_topics)
    numbers = {topic: content_topic for topic, content_topic in numbered if topic is not None}
    keys: dict[str, list[bytes]] = {}
    for row in TopicKey.objects.filter(topic__in=numbers.keys()) if numbers else ():
        keys.setdefault(numbers[row.topic], []).append(_key(row))
    return keys


def _key(row: TopicKey) -> bytes:
    if row.key_encrypted is not None:
        try:
            return keyring().decrypt(Purpose.TOPIC_KEY, row.key_encrypted)
        except DecryptionError:  # its field key was taken out of the settings; what it hid can be made again
            log.warning("topic_key_derived_again", topic_key_id=row.pk)
    key = topics.symmetric_key(row.name)
    TopicKey.objects.filter(pk=row.pk).update(key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, key))
    return key


class QueryTopics:
    """The set itself, kept up to date over a database connection of its own."""

    def __init__(self) -> None:
        self._topics: set[int] = set()
        self._connection: psycopg.Connection | None = None

    def __contains__(self, content_topic: str) -> bool:
        return number(content_topic) in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def refresh(self) -> None:
        """Take in every topic committed before this call. Raises psycopg.Error while the database is away."""
        try:
            if self._connection is None:
                self._connect()
            self._take_news()
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        """Listen first and load afterwards, so that nothing falls between."""
        self._connection = connection.get_new_connection(connection.get_connection_params())
        self._connection.autocommit = True
        self._connection.execute(f"LISTEN {CHANNEL}")
        rows = self._connection.execute("SELECT topic FROM registrations_topickey")
        self._topics = {row[0] for row in rows}

    def _take_news(self) -> None:
        assert self._connection is not None  # noqa: S101 - refresh() made it
        # The server hands out notifications between commands: after this one, all that were committed are here.
        self._connection.execute("SELECT 1")
        for notification in self._connection.notifies(timeout=0):
            self._topics.update(map(int, notification.payload.split(",")))
