"""One page after another of a store, into the intake: what the walker and the backfill have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog
from django.utils import timezone

from waku_bridge.inbox import Path
from waku_bridge.metrics import STORE_PAGES
from waku_bridge.node import NodeError, StoreEntry, StorePage
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.seen import SeenHashes
from waku_bridge.reading.sightings import Reader
from waku_bridge.reading.threads import in_thread
from waku_bridge.reading.windows import Window

log = structlog.get_logger(__name__)

PAGE_SIZE = 100
# 3.5 kB of URL.
HASHES_PER_QUERY = 50
# With a larger share of unknown messages in a page, the next one is asked for with all its messages.
MANY_UNKNOWN = 0.5


class Store(Protocol):
    """As much of a WakuNode as reading its store takes."""

    url: str

    async def store_page(self, **params: Any) -> StorePage: ...


class StuckStoreError(NodeError):
    """It handed out the same cursor twice: going on would never end."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a window to go on: the cursor of the next page (empty for the first), and whether to ask for messages
    rather than for hashes first.
    """

    cursor: str = ""
    with_messages: bool = False


class StorePages:
    """Pages of one shard in one store. The hashes on those that were `read` are remembered, and not asked for again."""

    def __init__(self, node: Store, reader: Reader, intake: Intake, path: Path) -> None:
        self.reader = reader
        self._node = node
        self._intake = intake
        self._path = path
        self._seen = SeenHashes()

    async def read(self, window: Window, place: Place, *, loop: str) -> Place | None:
        """Take in the page at ``place``; returns the place of the next one, or None when this was the last.

        Raises NodeError, and what the database raises; then nothing of the page counts as read.
        """
        page = await self._ask(window, place, include_data=place.with_messages)
        STORE_PAGES.labels(self.reader.name, loop).inc()
        unknown = [entry for entry in page.entries if not entry.message_hash or entry.message_hash not in self._seen]
        if not place.with_messages and not all(entry.message_hash for entry in unknown):
            # What has no hash, or one that we cannot read, is not to be had by its hash.
            return await self.read(window, replace(place, with_messages=True), loop=loop)
        if unknown:
            self._seen.add(await (self._take(unknown) if place.with_messages else self._fetch(unknown)))
        if not page.cursor:
            return None
        if page.cursor == place.cursor:
            raise StuckStoreError(f"{self.reader.name} repeats a cursor")
        return Place(page.cursor, len(unknown) > len(page.entries) * MANY_UNKNOWN)

    async def read_again(self, window: Window, cursor: str, content_topics: Sequence[str]) -> str:
        """Take in a page whether we saw its messages or not; returns the next cursor, empty when this was the last.

        Of these topics only (10 at most), or of all when there are none.
        """
        more = {"contentTopics": ",".join(content_topics)} if content_topics else {}
        page = await self._ask(window, Place(cursor), include_data=True, **more)
        STORE_PAGES.labels(self.reader.name, "topics").inc()
        await self._take(page.entries)
        if page.cursor and page.cursor == cursor:
            raise StuckStoreError(f"{self.reader.name} repeats a cursor")
        return page.cursor

    async def _ask(self, window: Window, place: Place, *, include_data: bool, **more: str) -> StorePage:
        return await self._node.store_page(
            pubsubTopic=self.reader.pubsub_topic,
            startTime=window.start_ns,
            endTime=window.end_ns,
            ascending="true",
            pageSize=PAGE_SIZE,
            includeData="true" if include_data else "false",
            **({"cursor": place.cursor} if place.cursor else {}),
            **more,
        )

    async def _fetch(self, unknown: Sequence[StoreEntry]) -> set[bytes]:
        """By their hashes, those that are not in the inbox. Returns the hashes that need not be asked for again."""
        hashes = [entry.message_hash for entry in unknown]
        known = await in_thread(self._intake.known, hashes, self.reader)
        told = set(known)
        for batch in _batches([each for each in hashes if each not in known]):
            texts = ",".join(f"0x{each.hex()}" for each in batch)
            page = await self._node.store_page(hashes=texts, includeData="true", pageSize=PAGE_SIZE)
            told |= await self._take(page.entries)
        return told

    async def _take(self, entries: Sequence[StoreEntry]) -> set[bytes]:
        """Returns by which hashes the store calls those of this shard."""
        ours = [entry for entry in entries if entry.pubsub_topic in ("", self.reader.pubsub_topic)]
        messages = [entry.message for entry in ours]
        selection = await in_thread(
            self._intake.take, messages, self.reader, path=self._path, received_at=timezone.now()
        )
        told = {entry.message_hash for entry in ours if entry.message_hash}
        if mistaken := sum(envelope.hash not in told for envelope in selection.envelopes):
            # Taken all the same, under the hash that they have: what they say is signed.
            log.warning("store_hashes_wrong", node=self.reader.name, count=mistaken)
        return told


def _batches(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(hashes), HASHES_PER_QUERY):
        yield hashes[start : start + HASHES_PER_QUERY]
