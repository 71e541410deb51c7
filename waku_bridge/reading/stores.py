"""The store path: it reads a node's store of one shard in tiers, and brings what the live path missed.

A store orders messages by their sender's timestamp, not by arrival, so there is no place in it behind which everything
is new. What is certain is only that a message is stored within a minute of its timestamp (20 s that the sender's clock
may be behind, 20 s that the store's own may be wrong, 20 s that its handlers may take), or up to an hour late, when
another store hands it over. So each tier reads every message once, when it has a certain age.

The fast tier alone is no promise: it leaves to the minute tier what it did not read within three minutes. The other two
tiers note how far they are, after their messages were stored and on the same connection: after a fail-over those may be
in a database that is gone. Two bridges may read one store for a moment, and each notes only what it has read itself.

A content topic that is new to us is read once more: a query may come before the registration that it is about, from
somebody who saw the new user's grant elsewhere, and was taken for a message to others. Such topics are in memory alone.
A bridge that follows knows every topic, and remembers no message: its slow tier takes in such a query.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import NamedTuple

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from kit.db.clock import DAY, clock
from kit.db.reasons import reason
from kit.http import Backoff
from kit.processes.leader import Term
from kit.processes.starting import note_refusal
from waku_bridge.dialect import Busy, CursorLost, NodeError, StoreEntry, StorePage
from waku_bridge.metrics import (
    MESSAGES_READ,
    STORE_ERRORS,
    STORE_ONLY,
    STORE_PAGES,
    STORE_WATERMARK_TIMESTAMP_SECONDS,
    STORE_WINDOW_SECONDS,
)
from waku_bridge.node import BUSY_SECONDS, WakuNode
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.pages import Page, Reader

log = structlog.get_logger(__name__)

PAGE_SIZE = 100
# They make a URL of 3.5 kB.
HASHES_PER_QUERY = 50
# After a page with a larger share of unknown messages, the next one is requested with all its messages.
MANY_UNKNOWN = 0.5
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Window(NamedTuple):
    """A stretch of time from ``start_at`` to ``end_at``, both included, by the clock of our database."""

    start_at: datetime
    end_at: datetime

    @property
    def nanoseconds(self) -> tuple[int, int]:
        """Return both ends, to the end of the last microsecond: windows that touch leave nothing out between them."""
        start, end = ((at - EPOCH) // MICROSECOND * 1000 for at in self)
        return start, end + 999


@dataclass(frozen=True, slots=True)
class Tier:
    """An age at which every message of a store is read, and how often a tier looks what has reached it."""

    name: str
    age: timedelta
    period: timedelta


FAST = Tier("fast", age=timedelta(seconds=3), period=timedelta(seconds=3))
MINUTE = Tier("minute", age=timedelta(minutes=1), period=timedelta(seconds=15))
SLOW = Tier("slow", age=timedelta(minutes=65), period=timedelta(minutes=10))
TIERS = (FAST, MINUTE, SLOW)
# How far the fast tier goes back. What is older comes with the minute tier, so that what is new is served meanwhile.
FAST_REACH = timedelta(minutes=3)
# What a tier reads before it notes how far it is. A restart reads at most this much again.
SLICE = timedelta(minutes=1)


LOAD_MARKS = """
    INSERT INTO waku_bridge_storewatermark AS mark (node, pubsub_topic, watermark_at, late_searched_at)
    VALUES (%b, %b, %b, %b)
    ON CONFLICT (node, pubsub_topic) DO UPDATE SET watermark_at = mark.watermark_at
    RETURNING watermark_at, late_searched_at
"""
SAVE_WATERMARK = "UPDATE waku_bridge_storewatermark SET watermark_at = %b WHERE node = %b AND pubsub_topic = %b"
SAVE_LATE_MARK = "UPDATE waku_bridge_storewatermark SET late_searched_at = %b WHERE node = %b AND pubsub_topic = %b"
SAVE = {MINUTE: SAVE_WATERMARK, SLOW: SAVE_LATE_MARK}


class Marks:
    """The time up to which each tier has read one store and shard.

    ``number`` is that of the connection that they were loaded on, at ``loaded_at``. After an outage, a tier goes back
    ``recovery`` at most.
    """

    def __init__(self, session: Session, reader: Reader, recovery: timedelta) -> None:
        self._session = session
        self._name = reader.node, reader.pubsub_topic
        self._reach = {FAST: FAST_REACH, MINUTE: recovery, SLOW: recovery}
        self._until: dict[Tier, datetime] = {}
        self.number = 0
        self.loaded_at = clock.now()

    async def refresh(self) -> None:
        """Load the marks unless they were loaded on this connection. Raises psycopg.Error.

        Commits of another connection may be gone. A store that was never read is read from 75 minutes ago.
        """
        number = await self._session.connect()
        if number == self.number:
            return
        now = clock.now()
        values = [*self._name, now - SLOW.age - SLOW.period, now]
        [(watermark_at, late_searched_at)] = await self._session.execute(LOAD_MARKS, values, number=number)
        self._until = {FAST: watermark_at, MINUTE: watermark_at, SLOW: late_searched_at - SLOW.age}
        self.number, self.loaded_at = number, now

    def lag(self, tier: Tier, now: datetime) -> timedelta:
        """Return how long ago the tier should have read what comes next."""
        return now - tier.age - self._until[tier]

    def next_window(self, tier: Tier, now: datetime) -> Window | None:
        """Return what the tier has to read next, or None when nothing more has reached its age.

        A mark in the future was set while the clock was ahead, nobody knows for how long.
        """
        until, oldest = self._until[tier], now - self._reach[tier]
        begin = oldest if until > now else max(until, oldest)
        end_at = min(now - tier.age, begin + SLICE)
        return Window(begin + MICROSECOND, end_at) if begin < end_at else None

    async def move(self, tier: Tier, until: datetime, number: int) -> None:
        """Note that the tier has read everything up to this time. Raises psycopg.Error.

        Nothing is noted unless the connection still has the number that it had before the tier read.
        """
        if number != self.number:
            raise psycopg.OperationalError("the connection ended meanwhile")
        if tier in SAVE:
            moved_to = until + SLOW.age if tier is SLOW else until
            await self._session.execute(SAVE[tier], [moved_to, *self._name], number=number)
        self._until[tier] = until


# Longest pause between two attempts to read an unreachable store. It is short because only that store has some of the
# messages.
MAX_SECONDS = 5.0
# How much of the past is read for a topic that is new.
BACKFILL = timedelta(minutes=5)
# A sender's clock may be ahead by 20 s, and our own be behind.
AHEAD = timedelta(seconds=25)
# Time that a message needs to reach a store on another node. More topics are collected meanwhile.
SETTLE = timedelta(seconds=2)
# nwaku's limit, from the second page on.
TOPICS_PER_QUERY = 10
# With more topics than this, reading everything once is less work than reading ten topics at a time.
MANY_TOPICS = 200
# Shortest time between two reads of everything. Topics that are requested meanwhile wait for the next one. So the
# traffic grows to six times its size at most, however many topics somebody registers.
EVERYTHING_PERIOD_SECONDS = 60.0


class StoreReader:
    """Reader of one shard from one store, while the lock is held: each tier and the new topics in a task of its own.

    Messages that were taken in are not fetched again. They are remembered by the hashes that we compute: if a store
    returns garbage under the hash of a real message, the real one is still taken from another store.

    A cursor is only used for the next page of the same window. It names a message of one store, and a reader that goes
    on from it never sees what the store inserts before it later.
    """

    def __init__(self, node: WakuNode, pubsub_topic: str, intake: Intake) -> None:
        self.reader = Reader("store", node.url, pubsub_topic)
        self._backfill = Reader("backfill", node.url, pubsub_topic)
        self._node = node
        self._intake = intake
        # The hash of a message that is read again after an outage must still be kept, or it would be processed twice.
        self._recovery = intake.keep - DAY
        self._marks = Marks(intake.session, self.reader, self._recovery)
        self._backoff = Backoff(MAX_SECONDS)
        self._is_catching_up = False
        self._requested_at: dict[str, datetime] = {}  # by content topic
        self._has_requests = asyncio.Event()
        self._everything_again_at = 0.0  # monotonic

    def request(self, content_topics: Sequence[str]) -> None:
        """Have the last minutes of these content topics read. No topic is dropped while the bridge runs."""
        self._requested_at |= dict.fromkeys(content_topics, clock.now())
        self._has_requests.set()

    async def run(self, term: Term) -> None:
        self._marks.number = 0  # another bridge may have read meanwhile
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_requested(term))
            for tier in TIERS:
                group.create_task(self._read_tier(tier, term))

    async def _read_tier(self, tier: Tier, term: Term) -> None:
        while not term.is_over:
            await term.pause(await self._attempt(self._read_next(tier, term)))

    async def _read_requested(self, term: Term) -> None:
        while not term.is_over:
            await term.pause(None, unless=self._has_requests)
            while self._requested_at and not term.is_over:
                await term.pause(await self._attempt(self._read_topics(term)))
            self._has_requests.clear()

    async def _attempt(self, reading: Awaitable[float]) -> float:
        """Read, and return the pause in seconds before the same is to be read on, or attempted again."""
        try:
            pause = await reading
        except NodeError as error:
            STORE_ERRORS.labels(self.reader.name, error.code).inc()
            if not self._backoff.failures:
                log.warning("store_lost", node=self.reader.name, error=str(error))
            return self._backoff.next() + (BUSY_SECONDS if isinstance(error, Busy) else 0.0)
        except (DjangoDatabaseError, psycopg.Error) as error:
            note_refusal(error)
            if not self._backoff.failures:
                log.warning("store_postponed", node=self.reader.name, reason=reason(error))
            return self._backoff.next()
        if self._backoff.works():
            log.info("store_back", node=self.reader.name)
        return pause

    async def _read_next(self, tier: Tier, term: Term) -> float:
        """Read the next window of a tier."""
        await self._marks.refresh()
        number, now = self._marks.number, clock.now()
        window, lag = self._marks.next_window(tier, now), self._marks.lag(tier, now)
        if window is None:
            return tier.period.total_seconds()
        with STORE_WINDOW_SECONDS.labels(self.reader.name, tier.name).time():
            found = await self._read(window, term, loop=tier.name)
        if found is None:
            return 0.0
        await self._marks.move(tier, window.end_at, number)
        if window.start_at >= self._marks.loaded_at:  # nothing was read live before that
            STORE_ONLY.labels(self.reader.name).inc(found)
        if tier is MINUTE:
            self._show(window.end_at, lag)
        return 0.0 if window.end_at < now - tier.age else tier.period.total_seconds()

    def _show(self, watermark_at: datetime, lag: timedelta) -> None:
        """Show how far the store was read, and log what had not been read in time before."""
        gauge = STORE_WATERMARK_TIMESTAMP_SECONDS.labels(self.reader.name, self.reader.pubsub_topic)
        gauge.set(watermark_at.timestamp())
        if lag > self._recovery:
            lost = round((lag - self._recovery).total_seconds())
            log.error("store_gap_unrecoverable", node=self.reader.name, seconds=lost)
        was_catching_up, self._is_catching_up = self._is_catching_up, lag > FAST_REACH
        if self._is_catching_up and not was_catching_up:
            log.warning("store_catching_up", node=self.reader.name, seconds=round(lag.total_seconds()))
        elif was_catching_up and not self._is_catching_up:
            log.info("store_caught_up", node=self.reader.name)

    async def _read_topics(self, term: Term) -> float:
        """Read some of the requested topics, or all messages where there are many of them."""
        settled_at = clock.now() - SETTLE
        topics = [topic for topic, at in self._requested_at.items() if at <= settled_at]
        if not topics:
            return SETTLE.total_seconds()
        if is_everything := len(topics) > MANY_TOPICS:
            if (rest := self._everything_again_at - monotonic()) > 0:
                return rest
        else:
            topics = topics[:TOPICS_PER_QUERY]
        since = min(self._requested_at[topic] for topic in topics) - BACKFILL
        window, named = Window(since, clock.now() + AHEAD), () if is_everything else topics
        if await self._read(window, term, loop="topics", again=named) is None:
            return 0.0
        if is_everything:
            self._everything_again_at = monotonic() + EVERYTHING_PERIOD_SECONDS
        for topic in topics:
            del self._requested_at[topic]
        log.info("topics_backfilled", node=self.reader.name, count=len(topics))
        return 0.0

    async def _read(self, window: Window, term: Term, *, loop: str, again: Sequence[str] | None = None) -> int | None:
        """Take in a window, and return how many envelopes were new, or None when the term ended before the last page.

        A page is requested with hashes only, and then the unknown messages by their hashes. Where most of them are
        unknown, the next page is requested with all its messages.

        With ``again``, messages that were seen before are taken in as well: those of these content topics (10 at most,
        which is nwaku's limit), or all where there are none.

        Raises NodeError, or an error of the database. Then the window has to be read again from its beginning.
        """
        reader, found, cursors = self.reader if again is None else self._backfill, 0, [""]
        with_messages = is_again = again is not None
        while not term.is_over:
            page = await self._ask(window, cursors[-1], again or (), with_messages=with_messages)
            STORE_PAGES.labels(self.reader.name, loop).inc()
            if not with_messages:
                MESSAGES_READ.labels(self.reader.name, "hashes").inc(len(page.entries))
            seen = self._intake.session.seen
            unknown = [entry for entry in page.entries if is_again or entry.message_hash not in seen]
            if not with_messages and not all(entry.message_hash for entry in unknown):
                with_messages = True  # a message without a hash, or with one that we cannot read, comes with its page
                continue
            if unknown:
                found += await (self._take(unknown, reader) if with_messages else self._fetch(unknown))
            if self._is_last(page, cursors):
                return found
            with_messages = is_again or len(unknown) > len(page.entries) * MANY_UNKNOWN
        return None

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

    async def _ask(
        self, window: Window, cursor: str, content_topics: Sequence[str], *, with_messages: bool
    ) -> StorePage:
        """Query a page. We have up to a million content topics, so queries name none but a few that are new."""
        start_ns, end_ns = window.nanoseconds
        return await self._node.store_page(
            pubsubTopic=self.reader.pubsub_topic,
            startTime=start_ns,
            endTime=end_ns,
            ascending="true",
            pageSize=PAGE_SIZE,
            includeData="true" if with_messages else "false",
            **({"cursor": cursor} if cursor else {}),
            **({"contentTopics": ",".join(content_topics)} if content_topics else {}),
        )

    async def _fetch(self, entries: Sequence[StoreEntry]) -> int:
        """Take in messages by their hashes, and return how many envelopes were new.

        A store may return fewer messages at once than requested, so it is asked until it returns none of them.
        """
        wanted, found = [entry.message_hash for entry in entries], 0
        while wanted:
            asked, rest = wanted[:HASHES_PER_QUERY], wanted[HASHES_PER_QUERY:]
            texts = ",".join(f"0x{each.hex()}" for each in asked)
            page = await self._node.store_page(hashes=texts, includeData="true", pageSize=PAGE_SIZE)
            found += await self._take(page.entries, self.reader)
            given = {entry.message_hash for entry in page.entries}
            left = [each for each in asked if each not in given]
            if len(left) == len(asked):
                log.warning("store_withholds_messages", node=self.reader.name, count=len(left))
                left = []
            wanted = left + rest
        return found

    async def _take(self, entries: Sequence[StoreEntry], reader: Reader) -> int:
        """Take in the messages of this shard, and return how many envelopes were new.

        They are taken in under their real hashes, whatever hashes the store gives, because their content is signed.
        """
        ours = [entry for entry in entries if entry.pubsub_topic in ("", self.reader.pubsub_topic)]
        await self._intake.take(page := Page(reader, clock.now(), [entry.message for entry in ours]))
        named = {entry.message_hash for entry in ours if entry.message_hash}
        if mistaken := sum(envelope.hash not in named for envelope in page.envelopes):
            log.warning("store_hashes_wrong", node=self.reader.name, count=mistaken)
        return len(page.new)
