"""Pages of a store: the walker and the backfill read them one after another into the intake."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from kit.db.clock import clock
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import MESSAGES_READ, STORE_PAGES
from waku_bridge.node import CursorLost, StoreEntry, StorePage
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.reader import Reader
from waku_bridge.reading.store.windows import Window

log = structlog.get_logger(__name__)

PAGE_SIZE = 100
# They make a URL of 3.5 kB.
HASHES_PER_QUERY = 50
# After a page with a larger share of unknown messages, the next one is requested with all its messages.
MANY_UNKNOWN = 0.5


class Store(Protocol):
    """The part of a WakuNode that reading its store needs."""

    url: str

    async def store_page(self, **params: Any) -> StorePage: ...


@dataclass(frozen=True, slots=True)
class PagePosition:
    """The position of the next page in a window.

    ``cursor`` names the page (empty: the first), and ``earlier`` the pages before it. ``with_messages`` requests
    messages at once, instead of hashes first.
    """

    cursor: str = ""
    with_messages: bool = False
    earlier: frozenset[str] = frozenset()


class StorePages:
    """Pages of one shard in one store. Messages that were taken in are not fetched again.

    The hash that a store gives for a message counts for that store alone. If a store returns garbage under the hash of
    a real message, the real one is still taken from another store. ``found`` counts the envelopes that were new.
    """

    def __init__(self, node: Store, reader: Reader, intake: Intake, path: Path) -> None:
        self.reader = reader
        self.found = 0
        self._node = node
        self._intake = intake
        self._path = path
        self._session = intake.session

    async def read(self, window: Window, position: PagePosition, *, loop: str) -> PagePosition | None:
        """Take in the page at ``position``, and return the position of the next one, or None after the last.

        Raises NodeError, or an error of the database. Nothing of the page counts as read then, and after CursorLost
        nothing of the window.
        """
        page = await self._ask(window, position, include_data=position.with_messages)
        STORE_PAGES.labels(self.reader.name, loop).inc()
        if not position.with_messages:
            MESSAGES_READ.labels(self.reader.name, "hashes").inc(len(page.entries))
        unknown = [entry for entry in page.entries if not self._was_taken(entry.message_hash)]
        if not position.with_messages and not all(entry.message_hash for entry in unknown):
            # A message without a hash, or with one that we cannot read, cannot be fetched by its hash.
            return await self.read(window, replace(position, with_messages=True), loop=loop)
        if unknown:
            await (self._take(unknown) if position.with_messages else self._fetch(unknown))
        return self._after(page, position, with_messages=len(unknown) > len(page.entries) * MANY_UNKNOWN)

    async def read_again(
        self, window: Window, position: PagePosition, content_topics: Sequence[str]
    ) -> PagePosition | None:
        """Take in the page at ``position``, also messages that were seen before, and return the next one, as `read`.

        The page has messages of these content topics only (10 at most), or of all where there are none.
        """
        more = {"contentTopics": ",".join(content_topics)} if content_topics else {}
        page = await self._ask(window, position, include_data=True, **more)
        STORE_PAGES.labels(self.reader.name, "topics").inc()
        await self._take(page.entries)
        return self._after(page, position, with_messages=True)

    def _after(self, page: StorePage, position: PagePosition, *, with_messages: bool) -> PagePosition | None:
        """Return the position after a page. Raises CursorLost when the cursor does not lead to the end of the window.

        A store gives a cursor only if it has more messages. So an empty page after one is not the end, and a store that
        leads back to a page before would be read for ever.
        """
        earlier = position.earlier | {position.cursor}
        if page.cursor in earlier and page.cursor:
            raise CursorLost(f"{self.reader.name} repeats a cursor")
        if position.cursor and not page.entries:
            raise CursorLost(f"{self.reader.name} has nothing after a cursor")
        return PagePosition(page.cursor, with_messages, earlier) if page.cursor else None

    async def _ask(self, window: Window, position: PagePosition, *, include_data: bool, **more: str) -> StorePage:
        return await self._node.store_page(
            pubsubTopic=self.reader.pubsub_topic,
            startTime=window.start_ns,
            endTime=window.end_ns,
            ascending="true",
            pageSize=PAGE_SIZE,
            includeData="true" if include_data else "false",
            **({"cursor": position.cursor} if position.cursor else {}),
            **more,
        )

    def _was_taken(self, message_hash: bytes) -> bool:
        memories = self._session.seen, self._session.misnamed[self.reader.node]
        return bool(message_hash) and any(message_hash in memory for memory in memories)

    async def _fetch(self, unknown: Sequence[StoreEntry]) -> None:
        """Fetch the messages that are not in the inbox, by their hashes, and take them in."""
        hashes = [entry.message_hash for entry in unknown]
        known = await self._intake.known(hashes)
        for batch in _batches([each for each in hashes if each not in known]):
            if withheld := await self._fetch_batch(batch):
                log.warning("store_withholds_messages", node=self.reader.name, count=len(withheld))

    async def _fetch_batch(self, wanted: Sequence[bytes]) -> Sequence[bytes]:
        """Request these messages until the store returns none of them, and return the hashes that it withholds.

        A store may return fewer messages at once than were requested.
        """
        while wanted:
            texts = ",".join(f"0x{each.hex()}" for each in wanted)
            page = await self._node.store_page(hashes=texts, includeData="true", pageSize=PAGE_SIZE)
            await self._take(page.entries)
            given = {entry.message_hash for entry in page.entries}
            left = [each for each in wanted if each not in given]
            if len(left) == len(wanted):
                return left
            wanted = left
        return ()

    async def _take(self, entries: Sequence[StoreEntry]) -> None:
        """Take in the messages of this shard, and remember the wrong hashes that this store gives them."""
        ours = [entry for entry in entries if entry.pubsub_topic in ("", self.reader.pubsub_topic)]
        messages = [entry.message for entry in ours]
        taken = await self._intake.take(messages, self.reader, path=self._path, received_at=clock.now())
        self.found += len(taken.new)
        named = {entry.message_hash for entry in ours if entry.message_hash}
        self._session.misnamed[self.reader.node].add(named - taken.hashes)
        if mistaken := sum(envelope.hash not in named for envelope in taken.selection.envelopes):
            # They are taken in under their real hash, because their content is signed.
            log.warning("store_hashes_wrong", node=self.reader.name, count=mistaken)


def _batches(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(hashes), HASHES_PER_QUERY):
        yield hashes[start : start + HASHES_PER_QUERY]
