"""The pushes that reached the imitated Apple or Google, in SQLite: the evidence for "sent once".

The database is in memory or a file. Each statement commits itself, without waiting for the disk.
"""

import sqlite3
from pathlib import Path
from typing import Any

import orjson

from embedded.gorush.outcomes import Platform
from embedded.gorush.request import Notification

PAGE = 10_000
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS push (
    id INTEGER PRIMARY KEY AUTOINCREMENT, received_ms INTEGER NOT NULL, platform INTEGER NOT NULL, token TEXT NOT NULL,
    topic TEXT NOT NULL, collapse_id TEXT NOT NULL, error TEXT NOT NULL, notification BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS push_token ON push (token, collapse_id, error);
"""
INSERT = """INSERT INTO push (received_ms, platform, token, topic, collapse_id, error, notification)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
SELECT = """SELECT id, received_ms, platform, token, topic, collapse_id, error, notification
    FROM push WHERE id > ? ORDER BY id LIMIT ?"""


class Pushes:
    def __init__(self, data: Path | None) -> None:
        if data:
            data.touch(mode=0o600)  # it contains device tokens; the files beside it get the same mode
            data.chmod(0o600)
        self._connection = sqlite3.connect(data or ":memory:", isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.executescript(SCHEMA)

    def record(self, notification: Notification, token: str, *, error: str, received_ms: int) -> None:
        """Record one push. An empty token means an FCM broadcast to `topic`; `error` is empty for an accepted push."""
        body = orjson.dumps(notification.fields)
        # A Firebase message goes to a token or to a topic. A notification with both makes two messages.
        topic = "" if token and notification.platform == Platform.ANDROID else notification.topic
        row = (received_ms, notification.platform, token, topic, notification.collapse_id, error, body)
        self._connection.execute(INSERT, row)

    def tries(self, token: str, collapse_id: str) -> int:
        sql = "SELECT count(*) FROM push WHERE token = ? AND collapse_id = ?"
        return int(self._connection.execute(sql, (token, collapse_id)).fetchone()[0])

    def since(self, push_id: int, limit: int = PAGE) -> list[dict[str, Any]]:
        """Return the pushes after this id, oldest first."""
        return [_as_dict(row) for row in self._connection.execute(SELECT, (push_id, limit))]

    def count_by_token(self) -> dict[str, dict[str, int]]:
        """Return for each token how many recorded pushes were accepted, and how many refused."""
        sql = "SELECT token, sum(error = ''), sum(error != '') FROM push GROUP BY token"
        rows = self._connection.execute(sql)
        return {token: {"accepted": accepted, "refused": refused} for token, accepted, refused in rows}

    def clear(self) -> None:
        """Forget all pushes. Ids go on, so that a reader's `since` stays valid."""
        self._connection.execute("DELETE FROM push")

    def close(self) -> None:
        self._connection.close()


def _as_dict(row: sqlite3.Row) -> dict[str, Any]:
    push = dict(row)
    notification = orjson.loads(push.pop("notification"))
    return {
        **push,
        "platform": Platform(push["platform"]).name.lower(),
        "notif_id": notification.get("notif_id") or "",
        "message": notification.get("message") or "",
        "data": notification.get("data") or {},
        "notification": notification,
    }
