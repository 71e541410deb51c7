"""The store: archived messages in SQLite, found in nwaku's order and written as nwaku does.

Each statement commits itself, without waiting for the disk. So a killed process loses nothing, and a machine that fails
may lose the last rows, which is acceptable for a development store.
"""

import sqlite3
from pathlib import Path
from typing import Any

from embedded.node.wire import StoreQuery, message_fields
from waku_bridge.messages import WakuMessage

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


class Archive:
    def __init__(self, data: Path | None) -> None:
        self._connection = sqlite3.connect(data or ":memory:", isolation_level=None)
        self._connection.executescript(SCHEMA)

    def insert(self, message_hash: bytes, pubsub_topic: str, each: WakuMessage) -> None:
        """Store a message of any age: store-sync brings old ones, too."""
        row = message_hash, pubsub_topic, each.payload, each.content_topic, each.timestamp_ns, each.version, each.meta
        self._connection.execute(f"INSERT OR IGNORE INTO message ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def find(self, query: StoreQuery) -> dict[str, Any]:
        """Return one page as nwaku writes it, in the order (timestamp, hash). Paging backward leads to older ones.

        It has a cursor only if another message existed. Raises QueryRefusedError.
        """
        where, values = ["timestamp_ns BETWEEN ? AND ?"], list[object]((query.start_ns, query.end_ns))
        if query.cursor is not None:
            where.append(f"(timestamp_ns, message_hash) {'>' if query.is_forward else '<'} (?, ?)")
            values += (self._time_of(query.cursor, query), query.cursor)
        for column, wanted in (
            ("pubsub_topic", query.pubsub_topics),
            ("content_topic", query.content_topics),
            ("message_hash", query.hashes),
        ):
            if wanted:
                where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += wanted
        order = "ASC" if query.is_forward else "DESC"
        sql = f"SELECT {COLUMNS} FROM message WHERE {' AND '.join(where)}"
        sql += f" ORDER BY timestamp_ns {order}, message_hash {order} LIMIT ?"
        rows = self._connection.execute(sql, (*values, query.page_size + 1)).fetchall()
        found: list[dict[str, object]] = []
        for digest, pubsub_topic, payload, content_topic, timestamp_ns, version, meta in rows[: query.page_size]:
            found.append({"messageHash": f"0x{digest.hex()}"})
            if query.include_data:
                message = WakuMessage(payload, content_topic, timestamp_ns, version=version, meta=meta)
                found[-1] |= {"message": message_fields(message), "pubsubTopic": pubsub_topic}
        cursor = {"paginationCursor": found[-1]["messageHash"]} if len(rows) > query.page_size else {}
        messages = found if query.is_forward else found[::-1]
        return {"requestId": "", "statusCode": 200, "statusDesc": "OK", "messages": messages, **cursor}

    def _time_of(self, cursor: bytes, query: StoreQuery) -> int:
        # nwaku counts content topics on cursor pages only. So page 1 of such a query works, and page 2 does not.
        if len(query.content_topics) > MAX_CONTENT_TOPICS_WITH_CURSOR:
            raise QueryRefusedError("INVALID_QUERY: too many content topics")
        if not any(cursor):
            raise QueryRefusedError("INVALID_QUERY: all zeroes cursor hash")
        row = self._connection.execute("SELECT timestamp_ns FROM message WHERE message_hash = ?", (cursor,)).fetchone()
        if row is None:
            raise QueryRefusedError("DRIVER_ERROR: cursor not found")
        return int(row[0])

    def forget_before(self, timestamp_ns: int) -> None:
        self._connection.execute("DELETE FROM message WHERE timestamp_ns < ?", (timestamp_ns,))

    def close(self) -> None:
        self._connection.close()
