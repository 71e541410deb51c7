"""The store: the query of `GET /store/v3/messages` as nwaku reads it, and archived messages in SQLite.

Each statement commits itself, without waiting for the disk. So a killed process loses nothing, and a machine that fails
may lose the last rows, which is acceptable for a development store.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_plus

from waku_bridge.messages import WakuMessage

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100
MAX_CONTENT_TOPICS_WITH_CURSOR = 10
HASH_BYTES = 32
BOOLEANS = {"": False, **dict.fromkeys(("y", "yes", "true", "1", "on"), True)}
BOOLEANS |= dict.fromkeys(("n", "no", "false", "0", "off"), False)

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS message (
    message_hash BLOB PRIMARY KEY, timestamp_ns INTEGER NOT NULL, pubsub_topic TEXT NOT NULL,
    content_topic TEXT NOT NULL, payload BLOB NOT NULL, version INTEGER NOT NULL, meta BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS message_order ON message (timestamp_ns, message_hash);
"""
COLUMNS = "message_hash, pubsub_topic, payload, content_topic, timestamp_ns, version, meta"


class InvalidQueryError(ValueError):
    """A parameter that cannot be parsed. The text may be shown to the caller."""


class QueryRefusedError(Exception):
    """A query that nwaku answers with 500 although its parameters parse. The text may be shown to the caller."""


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query. Times are inclusive nanoseconds. `cursor` is the hash of the previous page's last message, exclusive."""

    include_data: bool = False
    pubsub_topic: str = ""
    content_topics: tuple[str, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    hashes: tuple[bytes, ...] = ()
    cursor: bytes | None = None
    is_forward: bool = True
    page_size: int = DEFAULT_PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in chronological order, each with its hash and pubsub topic.

    `cursor` is set only if another row existed when the page was read.
    """

    messages: tuple[tuple[bytes, str, WakuMessage], ...]
    cursor: bytes | None


def read_query(parameters: Mapping[str, str]) -> StoreQuery:
    """Return a query. An empty parameter counts as absent. Raises InvalidQueryError.

    Topics and hashes are URL-decoded a second time, after the HTTP layer did it once. `ascending` is forward for the
    exact text `true` only; absent is forward too.
    """
    given = {name: unquote_plus(text) for name, text in parameters.items() if text}

    def split(name: str) -> list[str]:
        return given[name].removesuffix(",").split(",") if name in given else []

    def number(name: str) -> int:
        return int(given.get(name, "0"))

    try:
        size = number("pageSize")
        return StoreQuery(
            include_data=BOOLEANS[given.get("includeData", "").lower()],
            pubsub_topic=given.get("pubsubTopic", ""),
            content_topics=tuple(split("contentTopics")),
            start_ns=max(number("startTime"), 0) or None,
            end_ns=max(number("endTime"), 0) or None,
            hashes=tuple(map(_hash, split("hashes"))),
            cursor=_hash(given["cursor"]) if "cursor" in given else None,
            is_forward=given.get("ascending", "true") == "true",
            # nwaku casts a negative number to unsigned.
            page_size=MAX_PAGE_SIZE if size < 0 else min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE),
        )
    except (KeyError, ValueError) as exc:
        raise InvalidQueryError("a parameter cannot be parsed") from exc


def _hash(text: str) -> bytes:
    raw = bytes.fromhex(text.removeprefix("0x"))
    if len(raw) != HASH_BYTES:
        raise ValueError("length")
    return raw


class Archive:
    def __init__(self, data: Path | None) -> None:
        self._connection = sqlite3.connect(data or ":memory:", isolation_level=None)
        self._connection.executescript(SCHEMA)

    def insert(self, message_hash: bytes, pubsub_topic: str, each: WakuMessage) -> None:
        """Store a message of any age: store-sync brings old ones, too."""
        row = message_hash, pubsub_topic, each.payload, each.content_topic, each.timestamp_ns, each.version, each.meta
        self._connection.execute(f"INSERT OR IGNORE INTO message ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def find(self, query: StoreQuery) -> Page:
        """Return one page in the order (timestamp, hash); paging backward leads to older ones.

        Raises QueryRefusedError.
        """
        where, values = ["TRUE"], list[object]()
        if query.cursor is not None:
            where.append(f"(timestamp_ns, message_hash) {'>' if query.is_forward else '<'} (?, ?)")
            values += (self._time_of(query.cursor, query), query.cursor)
        topics = (query.pubsub_topic,) if query.pubsub_topic else ()
        for column, wanted in (
            ("pubsub_topic", topics),
            ("content_topic", query.content_topics),
            ("message_hash", query.hashes),
        ):
            if wanted:
                where.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += wanted
        for limit, at_ns in ((">=", query.start_ns), ("<=", query.end_ns)):
            if at_ns is not None:
                where.append(f"timestamp_ns {limit} ?")
                values.append(at_ns)
        order = "ASC" if query.is_forward else "DESC"
        sql = f"SELECT {COLUMNS} FROM message WHERE {' AND '.join(where)}"
        sql += f" ORDER BY timestamp_ns {order}, message_hash {order} LIMIT ?"
        rows = self._connection.execute(sql, (*values, query.page_size + 1)).fetchall()
        page = [
            (digest, pubsub_topic, WakuMessage(payload, content_topic, timestamp_ns, version=version, meta=meta))
            for digest, pubsub_topic, payload, content_topic, timestamp_ns, version, meta in rows[: query.page_size]
        ]
        cursor = page[-1][0] if len(rows) > query.page_size else None
        return Page(tuple(page if query.is_forward else reversed(page)), cursor)

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

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM message").fetchone()[0])

    def close(self) -> None:
        self._connection.close()
