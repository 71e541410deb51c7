"""Dead letters: messages that may have been for us and cannot be read, kept for operators.

Anybody can publish any number of such messages, so the number and the size of those that are kept are limited.
"""

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import islice
from threading import Lock
from typing import Any

from kit.buckets.bucket import Buckets, Charge, per_minute
from kit.metrics import count
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import DEAD_LETTERS
from waku_bridge.models import DeadLetter
from waku_bridge.reading.pages import Reader, Rejected

# Long enough for every message of an honest client. With ENVELOPE_RETENTION_DAYS at 3 a bridge keeps 177 MB at most.
MAX_RAW_CHARACTERS = 4 * 1024
MAX_PER_MINUTE = 10
# Characters per minute that are compared with known letters, as live path and stores bring each message several
# times. It costs a tenth of a second of CPU time at most.
MAX_LOOKED_AT_CHARACTERS = 16 * 1024**2
LETTERS = Charge("letters", per_minute(MAX_PER_MINUTE))
CHARACTERS = Charge("characters", per_minute(MAX_LOOKED_AT_CHARACTERS))
# Matches a value named payload, of any type, and every value of at least 70 characters.
_PAYLOAD = re.compile(r"""(?<="payload": )(?:"(?:[^"\\]|\\.)*"?|\[[^\]]*\]?)|[A-Za-z0-9+/=_-]{70,}""")


class DeadLetters:
    """Store of dead letters: it keeps at most `MAX_PER_MINUTE` of one process, not counting repetitions.

    Further ones appear only in the count of skipped messages, which counts all of them. Readers share one instance,
    each from a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._buckets = Buckets()
        self._now = 0.0
        self._capacity = 0  # how many letters may be stored now

    def keep(self, rejected: Iterable[Rejected], reader: Reader, *, path: Path, now: datetime) -> None:
        """Store as many of these messages as the limits allow."""
        letters = (_letter(each, reader, path, now) for each in rejected)
        with self._lock:
            self._now = now.timestamp()
            self._capacity = int(self._buckets.left(LETTERS, now=self._now))
            self._store(letters)

    def _store(self, letters: Iterator[DeadLetter]) -> None:
        looked_at = {letter.digest: letter for letter in self._within_limits(letters)}
        stored = DeadLetter.objects.filter(digest__in=looked_at).values_list("digest", flat=True) if looked_at else ()
        known = {bytes(digest) for digest in stored}
        new = islice((letter for digest, letter in looked_at.items() if digest not in known), self._capacity)
        rows = sorted(new, key=lambda row: row.digest)
        if rows:
            DeadLetter.objects.bulk_create(rows, ignore_conflicts=True)
            count(DEAD_LETTERS, ((row.reason,) for row in rows))
        self._buckets.spend(LETTERS, len(rows), now=self._now)
        self._buckets.keep()

    def _within_limits(self, letters: Iterator[DeadLetter]) -> Iterator[DeadLetter]:
        while self._may_store() and (letter := next(letters, None)):
            characters = max(letter.size_bytes, MAX_RAW_CHARACTERS)  # comparing a short letter has a cost, too
            self._buckets.spend(CHARACTERS, characters, now=self._now)
            yield letter

    def _may_store(self) -> bool:
        return self._capacity > 0 and self._buckets.left(CHARACTERS, now=self._now) > 0


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
    """Return the message as operators see it: each payload is replaced by its length."""
    return _PAYLOAD.sub(lambda found: f"({len(found[0])} characters)", raw)


def _json(raw: Any) -> str:
    """Return the message in ASCII, its keys sorted, without ``proof``: relay writes that field and the store does not.

    Return an empty text where the message cannot be serialised.
    """
    if isinstance(raw, dict):
        raw = {name: value for name, value in raw.items() if name != "proof"}
    try:
        return json.dumps(raw, sort_keys=True)
    except (RecursionError, ValueError):
        return ""  # nested a thousand levels deep
