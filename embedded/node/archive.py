"""The store: archived messages in SQLite, and one page of them for a query.

Each statement commits itself, without waiting for the disk. So a killed process loses nothing, and a machine that fails
may lose the last rows, which is acceptable for a development store.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embedded.node.store_query import StoreQuery
from waku_bridge.messages import WakuMessage

ADMISSION_NS = 20 * 10**9
MAX_CONTENT_TOPICS_WITH_CURSOR = 10

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS message (
    message_hash BLOB PRIMARY KEY, timestamp_ns INTEGER NOT NULL, pubsub_topic TEXT NOT NULL,
    content_topic TEXT NOT NULL, payload BLOB NOT NULL, version INTEGER NOT NULL, meta BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS message_order ON message (timestamp_ns, message_hash);
"""
COLUMNS = "message_hash, pubsub_topic, payload, content_topic, timestamp_ns, version, meta"


class QueryRefusedError(Exception):
    """A query that nwaku answers with 500 although its parameters parse. The text may be shown to the caller."""


@dataclass(frozen=True, slots=True)
class Archived:
    message_hash: bytes
    pubsub_topic: str
    message: WakuMessage


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in chronological order. `cursor` is set only if another row existed when the page was read."""

    messages: tuple[Archived, ...]
    cursor: bytes | None


def is_admissible(message: WakuMessage, now_ns: int) -> bool:
    """Return whether the archive would take a message: not ephemeral, and at most 20 s away from the store's clock."""
    return not message.ephemeral and abs(message.timestamp_ns - now_ns) <= ADMISSION_NS


class Archive:
    def __init__(self, data: Path | None) -> None:
        self._connection = sqlite3.connect(data or ":memory:", isolation_level=None)
        self._connection.executescript(SCHEMA)

    def insert(self, message_hash: bytes, pubsub_topic: str, message: WakuMessage) -> None:
        """Store a message without the check of `is_admissible`: store-sync brings old ones, too."""
        row = (
            message_hash,
            pubsub_topic,
            message.payload,
            message.content_topic,
            message.timestamp_ns,
            message.version,
            message.meta,
        )
        self._connection.execute(f"INSERT OR IGNORE INTO message ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def find(self, query: StoreQuery) -> Page:
        """Return one page in the order (timestamp, hash); paging backward leads to older ones.

        Raises QueryRefusedError.
        """
        where, values = self._conditions(query)
        order = "ASC" if query.is_forward else "DESC"
        sql = f"SELECT {COLUMNS} FROM message{where} ORDER BY timestamp_ns {order}, message_hash {order} LIMIT ?"
        rows = self._connection.execute(sql, (*values, query.page_size + 1)).fetchall()
        page = [_archived(row) for row in rows[: query.page_size]]
        cursor = page[-1].message_hash if len(rows) > query.page_size else None
        return Page(tuple(page if query.is_forward else reversed(page)), cursor)

    def _conditions(self, query: StoreQuery) -> tuple[str, list[object]]:
        conditions = list(self._position(query)) + list(_filters(query))
        values = [value for _, some in conditions for value in some]
        where = " AND ".join(condition for condition, _ in conditions)
        return (f" WHERE {where}" if where else ""), values

    def _position(self, query: StoreQuery) -> Iterator[tuple[str, tuple[object, ...]]]:
        if query.cursor is None:
            return
        # nwaku counts content topics on cursor pages only. So page 1 of such a query works, and page 2 does not.
        if len(query.content_topics) > MAX_CONTENT_TOPICS_WITH_CURSOR:
            raise QueryRefusedError("INVALID_QUERY: too many content topics")
        if not any(query.cursor):
            raise QueryRefusedError("INVALID_QUERY: all zeroes cursor hash")
        sql = "SELECT timestamp_ns FROM message WHERE message_hash = ?"
        row = self._connection.execute(sql, (query.cursor,)).fetchone()
        if row is None:
            raise QueryRefusedError("DRIVER_ERROR: cursor not found")
        yield f"(timestamp_ns, message_hash) {'>' if query.is_forward else '<'} (?, ?)", (row[0], query.cursor)

    def forget_before(self, timestamp_ns: int) -> None:
        self._connection.execute("DELETE FROM message WHERE timestamp_ns < ?", (timestamp_ns,))

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM message").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


def _filters(query: StoreQuery) -> Iterator[tuple[str, tuple[object, ...]]]:
    if query.pubsub_topic:
        yield "pubsub_topic = ?", (query.pubsub_topic,)
    if query.content_topics:
        yield f"content_topic IN ({_marks(query.content_topics)})", query.content_topics
    if query.hashes:
        yield f"message_hash IN ({_marks(query.hashes)})", query.hashes
    if query.start_ns is not None:
        yield "timestamp_ns >= ?", (query.start_ns,)
    if query.end_ns is not None:
        yield "timestamp_ns <= ?", (query.end_ns,)


def _marks(values: tuple[object, ...]) -> str:
    return ", ".join("?" * len(values))


def _archived(row: tuple[bytes, str, bytes, str, int, int, bytes]) -> Archived:
    message_hash, pubsub_topic, payload, content_topic, timestamp_ns, version, meta = row
    message = WakuMessage(payload, content_topic, timestamp_ns, version=version, meta=meta)
    return Archived(message_hash, pubsub_topic, message)
