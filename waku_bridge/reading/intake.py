"""A page into the inbox: what every path does with what it read. Synchronous: calls run in threads.

What was seen on which path is compared here, too; see `sightings`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

import structlog

from measuring.batches import count
from waku_bridge import inbox
from waku_bridge.identity import own_content_topics
from waku_bridge.inbox import Path
from waku_bridge.metrics import (
    LIVE_ONLY,
    MESSAGES_MATCHED,
    MESSAGES_READ,
    MESSAGES_SKIPPED,
    STORE_MISSING,
    STORE_ONLY,
)
from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.dead_letters import DeadLetters
from waku_bridge.reading.pages import Selection, Topics, select
from waku_bridge.reading.sightings import Missed, Reader, Sightings

log = structlog.get_logger(__name__)

Enqueue = Callable[[list[bytes]], None]

NS_PER_SECOND = 10**9
MISSED = {Missed.STORE_ONLY: STORE_ONLY, Missed.LIVE_ONLY: LIVE_ONLY, Missed.STORE_MISSING: STORE_MISSING}


class Intake:
    """Shared by all readers of a process. ``keep`` is how long hashes are remembered: nothing older is taken."""

    def __init__(self, query_topics: QueryTopics, enqueue: Enqueue, *, keep: timedelta) -> None:
        self._query_topics = query_topics
        self._topics = Topics(own_content_topics(), query_topics)
        self._enqueue = enqueue
        self._keep = keep
        self._dead_letters = DeadLetters()
        self._sightings, self._lock = Sightings(), threading.Lock()

    def take(self, page: Sequence[Any], reader: Reader, *, path: Path, received_at: datetime) -> Selection:
        """Store what is ours and enqueue what is new. Raises psycopg.Error or an error of Django's database: then the
        same page can be given again.
        """
        self._query_topics.refresh()
        selection = self._select(page, reader.pubsub_topic, received_at)
        # First, so that nothing can fail between the commit of an envelope and its place in the queue.
        self._dead_letters.keep(selection.rejected, reader, path=path, now=received_at)
        new = inbox.store(selection.envelopes, source=reader.node, now=received_at, path=path)
        _count(page, selection, reader)
        self._saw(reader, [envelope.hash for envelope in selection.envelopes], new)
        if new:
            self._enqueue(new)
        return selection

    def known(self, hashes: Sequence[bytes], reader: Reader) -> set[bytes]:
        """Those that were ours and came before: nobody needs to fetch them."""
        known = inbox.known(hashes)
        self._saw(reader, known, ())
        return known

    def works(self, reader: Reader) -> None:
        with self._lock:
            self._sightings.works(reader, monotonic())

    def fails(self, reader: Reader) -> None:
        with self._lock:
            self._sightings.fails(reader)

    def _select(self, page: Sequence[Any], pubsub_topic: str, received_at: datetime) -> Selection:
        oldest_ns = int((received_at - self._keep).timestamp()) * NS_PER_SECOND
        now_ns = int(received_at.timestamp()) * NS_PER_SECOND
        return select(page, pubsub_topic, self._topics, oldest_ns=oldest_ns, now_ns=now_ns)

    def _saw(self, reader: Reader, hashes: Collection[bytes], new: Collection[bytes]) -> None:
        with self._lock:
            self._sightings.saw(reader, hashes, frozenset(new), monotonic())
            missed = list(self._sightings.settle(monotonic()))
        for kind, node in missed:
            MISSED[kind].labels(node).inc()


def _count(page: Sequence[Any], selection: Selection, reader: Reader) -> None:
    count(MESSAGES_READ, {(reader.name, reader.path): len(page)})
    count(MESSAGES_MATCHED, {(reader.name, reader.path): len(selection.envelopes)})
    reasons = Counter((rejected.reason,) for rejected in selection.rejected)
    count(MESSAGES_SKIPPED, reasons)
    if reasons:
        words = {reason: number for (reason,), number in reasons.items()}
        log.warning("messages_skipped", node=reader.name, pubsub_topic=reader.pubsub_topic, **words)
