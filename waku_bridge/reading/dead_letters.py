"""Keep for people what could have been for us and cannot be read.

Anybody can publish such messages, as many as they like, so their number and their size are limited.
"""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Any

from kit.metrics.batches import count
from waku_bridge.inbox import Path
from waku_bridge.metrics import DEAD_LETTERS
from waku_bridge.models import DeadLetter
from waku_bridge.reading.pages import Rejected
from waku_bridge.reading.reader import Reader

# Long enough for every message of an honest client. With ENVELOPE_RETENTION_DAYS at 3 a bridge keeps 177 MB at most.
MAX_RAW_CHARACTERS = 4 * 1024
MAX_PER_MINUTE = 10
# Live path and stores bring each message several times. So many are looked at in a minute to find those that are new.
MAX_LOOKED_AT = 100
REMEMBERED = 1000
# A value named payload, whatever it is, and every long value under another name, or none.
_PAYLOAD = re.compile(r"""(?<="payload": )(?:"(?:[^"\\]|\\.)*"?|\[[^\]]*\]?)|[A-Za-z0-9+/=_-]{70,}""")


class DeadLetters:
    """Keeps at most `MAX_PER_MINUTE` letters of one process, not counting those that come again.

    The others are only counted as skipped, as all of them are.
    """

    def __init__(self) -> None:
        self._minute: datetime | None = None
        self._room = self._looks = 0
        self._kept: dict[bytes, None] = {}  # digests, the oldest first

    def keep(self, rejected: Sequence[Rejected], reader: Reader, *, path: Path, now: datetime) -> None:
        """Store as many of these messages as there is room for in this minute."""
        self._begin_minute(now)
        looked_at = rejected[: self._looks if self._room > 0 else 0]
        letters = (_letter(each, reader, path, now) for each in looked_at)
        new = {letter.digest: letter for letter in letters if letter.digest not in self._kept}
        rows = sorted(islice(new.values(), max(self._room, 0)), key=lambda row: row.digest)
        if rows:
            DeadLetter.objects.bulk_create(rows, ignore_conflicts=True)
            count(DEAD_LETTERS, ((row.reason,) for row in rows))
            self._remember(row.digest for row in rows)
        self._looks -= len(looked_at)
        self._room -= len(rows)

    def _remember(self, digests: Iterable[bytes]) -> None:
        self._kept |= dict.fromkeys(digests)
        for digest in list(self._kept)[: max(len(self._kept) - REMEMBERED, 0)]:
            self._kept.pop(digest, None)

    def _begin_minute(self, now: datetime) -> None:
        minute = now.replace(second=0, microsecond=0)
        if minute != self._minute:
            self._minute, self._room, self._looks = minute, MAX_PER_MINUTE, MAX_LOOKED_AT


def _letter(rejected: Rejected, reader: Reader, path: Path, now: datetime) -> DeadLetter:
    raw = _json(rejected.raw)
    return DeadLetter(
        digest=sha256(raw.encode()).digest(),
        reason=rejected.reason,
        pubsub_topic=reader.pubsub_topic,
        content_topic=rejected.content_topic,
        raw=raw[:MAX_RAW_CHARACTERS],
        size_bytes=len(raw),
        source=reader.node,
        path=path,
        received_at=now,
    )


def without_payloads(raw: str) -> str:
    """Return the message with the length of each payload in its place, for people."""
    return _PAYLOAD.sub(lambda found: f"({len(found[0])} characters)", raw)


def _json(raw: Any) -> str:
    """Return the message in ASCII and in one order, without the proof, as relay writes one and the store does not."""
    if isinstance(raw, dict):
        raw = {name: value for name, value in raw.items() if name != "proof"}
    try:
        return json.dumps(raw, sort_keys=True)
    except (RecursionError, ValueError):
        return ""  # nested a thousand levels deep
