"""The store path: it reads a node's store of one shard in tiers, and brings what the live path missed.

A store orders messages by their sender's timestamp, not by arrival, so there is no place in it behind which everything
is new. What is certain is only that a message is stored within a minute of its timestamp (20 s that the sender's clock
may be behind, 20 s that the store's own may be wrong, 20 s that its handlers may take), or up to an hour late, when
another store hands it over. So each tier reads every message once, when it has a certain age.

The fast tier alone is no promise: it leaves to the minute tier what it did not read within three minutes. The other two
tiers note how far they are, after their messages were stored and on the same connection: after a fail-over those may be
in a database that is gone. Two bridges may read one store for a moment, and each notes only what it has read itself.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from kit.backoff import Backoff
from kit.db.clock import clock
from kit.db.reasons import reason
from kit.processes.leader import Term
from kit.processes.starting import note_refusal
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import STORE_ERRORS, STORE_ONLY, STORE_WATERMARK_TIMESTAMP_SECONDS, STORE_WINDOW_SECONDS
from waku_bridge.node import Busy, NodeError
from waku_bridge.node.client import BUSY_SECONDS
from waku_bridge.reading.intake import Intake, Session
from waku_bridge.reading.pages import Reader
from waku_bridge.reading.store_pages import MICROSECOND, Store, StorePages, Window

log = structlog.get_logger(__name__)


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
# Longest pause between two attempts to read an unreachable store. It is short because only that store has some of the
# messages.
MAX_SECONDS = 5.0
# The windows were noted by the release before, which must still find its table. Their time is read again.
LOAD = """
    WITH noted AS (
        DELETE FROM waku_bridge_storewindow USING waku_bridge_storewatermark AS mark
        WHERE watermark_id = mark.id AND mark.node = %(node)b AND mark.pubsub_topic = %(pubsub_topic)b
        RETURNING start_at
    )
    INSERT INTO waku_bridge_storewatermark AS mark (node, pubsub_topic, watermark_at, late_searched_at)
    VALUES (%(node)b, %(pubsub_topic)b, %(first_at)b, %(now)b)
    ON CONFLICT (node, pubsub_topic) DO UPDATE
        SET watermark_at = least(mark.watermark_at, (SELECT min(start_at) FROM noted))
    RETURNING watermark_at, late_searched_at
"""
SAVE = {
    MINUTE: "UPDATE waku_bridge_storewatermark SET watermark_at = %b WHERE node = %b AND pubsub_topic = %b",
    SLOW: "UPDATE waku_bridge_storewatermark SET late_searched_at = %b WHERE node = %b AND pubsub_topic = %b",
}


class Marks:
    """The time up to which each tier has read one store and shard.

    ``number`` is that of the connection that they were loaded on, at ``loaded_at``.
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
        node, pubsub_topic = self._name
        values = {"node": node, "pubsub_topic": pubsub_topic, "first_at": now - SLOW.age - SLOW.period, "now": now}
        [(watermark_at, late_searched_at)] = await self._session.execute(LOAD, values, number=number)
        self._until = {FAST: watermark_at, MINUTE: watermark_at, SLOW: late_searched_at - SLOW.age}
        self.number, self.loaded_at = number, now

    def forget(self) -> None:
        """Have the marks loaded again."""
        self.number = 0

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


class StoreReader:
    """Reader of one shard from one store, while the lock is held. After an outage it goes back ``recovery`` at most."""

    def __init__(self, node: Store, pubsub_topic: str, intake: Intake, *, recovery: timedelta) -> None:
        self.reader = Reader("store", node.url, pubsub_topic)
        self._pages = StorePages(node, self.reader, intake, Path.STORE)
        self._marks = Marks(intake.session, self.reader, recovery)
        self._recovery = recovery
        self._backoffs = {tier: Backoff(MAX_SECONDS) for tier in TIERS}
        self._failing: set[Tier] = set()
        self._is_catching_up = False

    async def run(self, term: Term) -> None:
        self._marks.forget()  # another bridge may have read meanwhile
        async with asyncio.TaskGroup() as group:
            for tier in TIERS:
                group.create_task(self._run(tier, term))

    async def _run(self, tier: Tier, term: Term) -> None:
        while not term.is_over:
            await term.pause(await self._read_once(tier, term))

    async def _read_once(self, tier: Tier, term: Term) -> float:
        """Read the next window of a tier, and return the pause in seconds before the one after it."""
        try:
            pause = await self._read_next(tier, term)
        except NodeError as error:
            return self._failed(tier, error)
        except (DjangoDatabaseError, psycopg.Error) as error:
            note_refusal(error)
            if not self._backoffs[tier].failures:
                log.warning("store_postponed", node=self.reader.name, reason=reason(error))
            return self._backoffs[tier].next()
        self._worked(tier)
        return pause

    async def _read_next(self, tier: Tier, term: Term) -> float:
        await self._marks.refresh()
        number, now = self._marks.number, clock.now()
        window, lag = self._marks.next_window(tier, now), self._marks.lag(tier, now)
        if window is None:
            return tier.period.total_seconds()
        with STORE_WINDOW_SECONDS.labels(self.reader.name, tier.name).time():
            found = await self._pages.read(window, term, loop=tier.name)
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
        seconds, unrecoverable = round(lag.total_seconds()), round((lag - self._recovery).total_seconds())
        if unrecoverable > 0:
            log.error("store_gap_unrecoverable", node=self.reader.name, seconds=unrecoverable)
        was_catching_up, self._is_catching_up = self._is_catching_up, lag > FAST_REACH
        if self._is_catching_up and not was_catching_up:
            log.warning("store_catching_up", node=self.reader.name, seconds=seconds)
        elif was_catching_up and not self._is_catching_up:
            log.info("store_caught_up", node=self.reader.name)

    def _failed(self, tier: Tier, error: NodeError) -> float:
        STORE_ERRORS.labels(self.reader.name, error.code).inc()
        if not self._failing:
            log.warning("store_lost", node=self.reader.name, error=str(error))
        self._failing.add(tier)
        return self._backoffs[tier].next() + (BUSY_SECONDS if isinstance(error, Busy) else 0.0)

    def _worked(self, tier: Tier) -> None:
        self._backoffs[tier].works()
        if self._failing == {tier}:
            log.info("store_back", node=self.reader.name)
        self._failing.discard(tier)
