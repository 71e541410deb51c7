"""Pages of a store: one stretch of time after another is read into the intake.

A page is requested with hashes only, and then the unknown messages by their hashes. Where most of them are unknown, the
next page is requested with all its messages. The query names the shard and never content topics, except for a few
topics that are new to us: nwaku takes ten of those at most, and we have up to a million.

A cursor is only used for the next page of the same window. It names a message of one store, and a reader that goes on
from it never sees what the store inserts before it later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from kit.db.clock import clock
from kit.processes.leader import Term
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import MESSAGES_READ, STORE_PAGES
from waku_bridge.node import CursorLost, StoreEntry, StorePage
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.pages import Reader

log = structlog.get_logger(__name__)

PAGE_SIZE = 100
# They make a URL of 3.5 kB.
HASHES_PER_QUERY = 50
# After a page with a larger share of unknown messages, the next one is requested with all its messages.
MANY_UNKNOWN = 0.5
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Store(Protocol):
    """The part of a WakuNode that reading its store needs."""

    url: str

    async def store_page(self, **params: Any) -> StorePage: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time from ``start_at`` to ``end_at``, both included, by the clock of our database."""

    start_at: datetime
    end_at: datetime

    @property
    def start_ns(self) -> int:
        return _nanoseconds(self.start_at)

    @property
    def end_ns(self) -> int:
        """Return the end of the last microsecond, so that windows that touch leave nothing out between them."""
        return _nanoseconds(self.end_at) + 999


def _nanoseconds(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND * 1000


class StorePages:
    """Pages of one shard in one store. Messages that were taken in are not fetched again.

    The hash that a store gives for a message counts for that store alone. If a store returns garbage under the hash of
    a real message, the real one is still taken from another store.
    """

    def __init__(self, node: Store, reader: Reader, intake: Intake, path: Path) -> None:
        self.reader = reader
        self._node = node
        self._intake = intake
        self._path = path
        self._session = intake.session

    async def read(self, window: Window, term: Term, *, loop: str) -> int | None:
        """Take in a window, and return how many envelopes were new, or None when the term ended before the last page.

        Raises NodeError, or an error of the database. Then the window has to be read again from its beginning.
        """
        found, cursors, with_messages = 0, [""], False
        while not term.is_over:
            page = await self._ask(window, cursors[-1], with_messages=with_messages)
            STORE_PAGES.labels(self.reader.name, loop).inc()
            if not with_messages:
                MESSAGES_READ.labels(self.reader.name, "hashes").inc(len(page.entries))
            unknown = [entry for entry in page.entries if not self._was_taken(entry.message_hash)]
            if not with_messages and not all(entry.message_hash for entry in unknown):
                with_messages = True  # a message without a hash, or with one that we cannot read, comes with its page
                continue
            if unknown:
                found += await (self._take(unknown) if with_messages else self._fetch(unknown))
            if self._is_last(page, cursors):
                return found
            with_messages = len(unknown) > len(page.entries) * MANY_UNKNOWN
        return None

    async def read_again(self, window: Window, term: Term, content_topics: Sequence[str]) -> bool:
        """Take in a window, also messages that were seen before. Return False when the term ended before the last page.

        Only messages of these content topics (10 at most) are read, or all where there are none. It raises as `read`.
        """
        more = {"contentTopics": ",".join(content_topics)} if content_topics else {}
        cursors = [""]
        while not term.is_over:
            page = await self._ask(window, cursors[-1], with_messages=True, **more)
            STORE_PAGES.labels(self.reader.name, "topics").inc()
            await self._take(page.entries)
            if self._is_last(page, cursors):
                return True
        return False

    def _is_last(self, page: StorePage, cursors: list[str]) -> bool:
        """Return whether a page is the last of its window, and else add the cursor of the next one.

        Raises CursorLost when the cursors do not lead to the end. A store gives a cursor only if it has more messages,
        so an empty page after one is not the end, and a store that leads back to a page before would be read for ever.
        """
        if cursors[-1] and not page.entries:
            raise CursorLost(f"{self.reader.name} has nothing after a cursor")
        if page.cursor and page.cursor in cursors:
            raise CursorLost(f"{self.reader.name} repeats a cursor")
        cursors.append(page.cursor)
        return not page.cursor

    async def _ask(self, window: Window, cursor: str, *, with_messages: bool, **more: str) -> StorePage:
        return await self._node.store_page(
            pubsubTopic=self.reader.pubsub_topic,
            startTime=window.start_ns,
            endTime=window.end_ns,
            ascending="true",
            pageSize=PAGE_SIZE,
            includeData="true" if with_messages else "false",
            **({"cursor": cursor} if cursor else {}),
            **more,
        )

    def _was_taken(self, message_hash: bytes) -> bool:
        memories = self._session.seen, self._session.misnamed[self.reader.node]
        return bool(message_hash) and any(message_hash in memory for memory in memories)

    async def _fetch(self, unknown: Sequence[StoreEntry]) -> int:
        """Take in the messages that are not in the inbox, by their hashes, and return how many envelopes were new."""
        hashes = [entry.message_hash for entry in unknown]
        known = await self._intake.known(hashes)
        wanted = [each for each in hashes if each not in known]
        found = 0
        for start in range(0, len(wanted), HASHES_PER_QUERY):
            found += await self._fetch_some(wanted[start : start + HASHES_PER_QUERY])
        return found

    async def _fetch_some(self, wanted: Sequence[bytes]) -> int:
        """Request these messages until the store returns none of them: it may return fewer at once than requested."""
        found = 0
        while wanted:
            texts = ",".join(f"0x{each.hex()}" for each in wanted)
            page = await self._node.store_page(hashes=texts, includeData="true", pageSize=PAGE_SIZE)
            found += await self._take(page.entries)
            given = {entry.message_hash for entry in page.entries}
            left = [each for each in wanted if each not in given]
            if len(left) == len(wanted):
                log.warning("store_withholds_messages", node=self.reader.name, count=len(left))
                break
            wanted = left
        return found

    async def _take(self, entries: Sequence[StoreEntry]) -> int:
        """Take in the messages of this shard, remember the wrong hashes that this store gives them, and return how many
        envelopes were new.
        """
        ours = [entry for entry in entries if entry.pubsub_topic in ("", self.reader.pubsub_topic)]
        messages = [entry.message for entry in ours]
        taken = await self._intake.take(messages, self.reader, path=self._path, received_at=clock.now())
        named = {entry.message_hash for entry in ours if entry.message_hash}
        self._session.misnamed[self.reader.node].add(named - taken.hashes)
        if mistaken := sum(envelope.hash not in named for envelope in taken.selection.envelopes):
            # They are taken in under their real hash, because their content is signed.
            log.warning("store_hashes_wrong", node=self.reader.name, count=mistaken)
        return len(taken.new)
