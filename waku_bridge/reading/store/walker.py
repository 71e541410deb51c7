"""The store path: it reads a node's store of one shard again and again, and brings what the live path missed.

Each pass reads what is new since the previous pass, and parts of the past again, in tiers: see `windows`. A page is
requested with hashes only, and then the unknown messages by their hashes. Where most of them are unknown, the page is
requested with all its messages. The query names the shard and never content topics: nwaku takes ten of those at most,
and we have up to a million.

After an outage, each pass comes first. The missed messages follow page by page between passes, the newest first. The
walker notes how far it is, so a restart goes on from there. A cursor is only used for the next page of the same slice.
It names a message of one store, and a reader that goes on from it never sees what the store inserts before it later.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from kit.backoff import Backoff
from kit.db.clock import clock
from kit.db.reasons import reason, sqlstate
from kit.processes import own_faults
from kit.processes.leader import Term
from waku_bridge.inbox.inbox import Path
from waku_bridge.metrics import STORE_ERRORS, STORE_ONLY, STORE_WATERMARK_TIMESTAMP_SECONDS, STORE_WINDOW_SECONDS
from waku_bridge.node import Busy, CursorLost, NodeError
from waku_bridge.node.client import BUSY_SECONDS
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.reader import Reader
from waku_bridge.reading.store import windows
from waku_bridge.reading.store.progress import Pending, Progress, Reason, StoreProgress
from waku_bridge.reading.store.store_pages import PagePosition, Store, StorePages
from waku_bridge.reading.store.windows import Plan, Window

log = structlog.get_logger(__name__)

# Longest pause between two attempts to read an unreachable store. It is short because only that store has some of the
# messages.
MAX_SECONDS = 5.0
# Attempts to read a window when a cursor does not lead on. After these it counts as a failure.
ATTEMPTS = 3
LOOPS = {Reason.OUTAGE: "backfill", Reason.LATE: "slow"}


class StoreWalker:
    """Reader of one shard from one store, while the lock is held. After an outage it goes back ``recovery`` at most.

    A live reader calls `suspect` after a possible loss.
    """

    def __init__(
        self, node: Store, pubsub_topic: str, intake: Intake, *, period_seconds: float, recovery: timedelta
    ) -> None:
        self.reader = Reader("store", node.url, pubsub_topic)
        self._pages = StorePages(node, self.reader, intake, Path.STORE)
        self._progress = StoreProgress(intake.session, node.url, pubsub_topic)
        self._period_seconds = period_seconds
        self._recovery = recovery
        self._backoff = Backoff(MAX_SECONDS)
        # For catching up: the position of the next page, and when each window was begun.
        self._position = PagePosition(with_messages=True)
        self._begun_at: dict[int, float] = {}
        self._is_first = True
        self._connection = 0  # the number of the connection that the last pass began on
        self._next_pass = 0.0
        # The window to search now, and the one to read for the last time later. ``_late_at`` is when the store was last
        # found to lack a message that it should have had.
        self._urgent: Window | None = None
        self._suspect: Window | None = None
        self._late_at: datetime | None = None
        self._settled_at = monotonic()
        self._wanted = asyncio.Event()

    def suspect(self, *, since: datetime) -> None:
        """Search for messages that came since then and may have been lost.

        The search is made at once, and once more when the store has had time to insert them all.
        """
        now = clock.now()
        self._urgent = windows.urgent(lost_since=since, now=now).hull(self._urgent)
        self._suspect = windows.suspect(since=since, now=now).hull(self._suspect)
        self._wanted.set()

    async def run(self, term: Term) -> None:
        self._is_first, self._next_pass = True, 0.0
        while not term.is_over:
            pause = await self._go_once(term)
            # After a failure of the store, an urgent search waits for the pause, too.
            await term.pause(pause, unless=None if self._backoff.is_failing else self._wanted)

    async def _go_once(self, term: Term) -> float:
        """Search the urgent window, make a pass if one is due, and catch up with the past until the next pass.

        Return the pause in seconds. Where a pass takes longer than the period, catching up gets as much time as the
        pass, so that neither blocks the other.
        """
        began = monotonic()
        try:
            await self._search_urgently(term)
            if began < self._next_pass:
                return self._next_pass - began
            self._next_pass = began + self._period_seconds
            pending = await self._pass(term)
            if pending:
                self._next_pass = max(self._next_pass, 2 * monotonic() - began)
            while pending and not term.is_over and not self._urgent and monotonic() < self._next_pass:
                pending = await self._catch_up(pending)
        except NodeError as error:
            return self._failed(error)
        except (DjangoDatabaseError, psycopg.Error) as error:
            own_faults.note_refusal(sqlstate(error))
            if not self._backoff.failures:
                log.warning("store_postponed", node=self.reader.name, reason=reason(error))
            return self._postpone(self._backoff.next())
        self._worked()
        return max(self._next_pass - monotonic(), 0.0)

    def _failed(self, error: NodeError) -> float:
        STORE_ERRORS.labels(self.reader.name, error.code).inc()
        if not self._backoff.failures:
            log.warning("store_lost", node=self.reader.name, error=str(error))
        self._late_at = now = clock.now()
        self._suspect = windows.suspect(since=now, now=now).hull(self._suspect)
        pause = self._backoff.next()
        return self._postpone(BUSY_SECONDS + pause if isinstance(error, Busy) else pause)

    def _postpone(self, seconds: float) -> float:
        self._next_pass = 0.0
        return seconds

    def _worked(self) -> None:
        failures = self._backoff.failures
        if self._backoff.works():
            log.info("store_back", node=self.reader.name, failures=failures)

    # Fresh and suspect windows ----------------------------------------------------------------------------------------

    async def _search_urgently(self, term: Term) -> None:
        self._wanted.clear()
        if window := self._urgent:
            self._urgent = None
            try:
                self._missed_live(await self._read_whole(window, term, loop="urgent"))
            except BaseException:
                self._urgent = window.hull(self._urgent)
                raise

    async def _pass(self, term: Term) -> Sequence[Pending]:
        """Read the fresh window and what can be settled, then move the watermark, and return the pending windows."""
        before = await self._progress.load()
        # Commits of other connections may be gone, so a new connection begins as a new bridge does.
        self._is_first = self._is_first or before.session != self._connection
        self._connection = before.session
        plan = self._plan(before)
        found = await self._read_whole(plan.fresh, term, loop="fast")
        if found or self._is_first:
            since = before.now if self._is_first else plan.fresh.start_at
            self._suspect = windows.suspect(since=since, now=before.now).hull(self._suspect)
        if not self._is_first:
            self._missed_live(found)
        await self._settle(before.now, term)
        if term.is_over:
            return ()
        self._warn(plan)
        pending = await self._progress.advance(before, plan)
        self._is_first = False
        self._show(plan, pending)
        return pending

    def _plan(self, before: Progress) -> Plan:
        is_late = self._late_at is not None and before.now - self._late_at < windows.LATE_REACH
        return windows.plan(
            watermark_at=before.watermark_at,
            late_searched_at=before.late_searched_at,
            now=before.now,
            recovery=self._recovery,
            is_first=self._is_first,
            is_late=is_late,
        )

    def _missed_live(self, found: int) -> None:
        if found:
            STORE_ONLY.labels(self.reader.name).inc(found)

    async def _settle(self, now: datetime, term: Term) -> None:
        """Read the part of the suspect window for the last time that is old enough."""
        window = windows.settled(self._suspect, now=now) if self._suspect else None
        if not window or monotonic() - self._settled_at < windows.SETTLE_PERIOD.total_seconds():
            return
        if found := await self._read_whole(window, term, loop="settle"):
            self._missed_live(found)
            self._late_at = now
        if not term.is_over and self._suspect:
            self._settled_at, self._suspect = monotonic(), self._suspect.after(window)

    async def _read_whole(self, window: Window, term: Term, *, loop: str) -> int:
        """Read a window, unless the term ends meanwhile, and return how many of its envelopes were new.

        When a cursor does not lead on, as its message is gone, the window is read from its beginning.
        """
        found = self._pages.found
        with STORE_WINDOW_SECONDS.labels(self.reader.name, loop).time():
            for _ in range(ATTEMPTS):
                try:
                    await self._read_through(window, term, loop)
                except CursorLost as error:
                    STORE_ERRORS.labels(self.reader.name, error.code).inc()
                    log.info("store_lost_the_place", node=self.reader.name, error=str(error))
                else:
                    return self._pages.found - found
        raise NodeError(f"{self.reader.name} lost the place {ATTEMPTS} times")

    async def _read_through(self, window: Window, term: Term, loop: str) -> None:
        position: PagePosition | None = PagePosition()
        while position and not term.is_over:
            position = await self._pages.read(window, position, loop=loop)

    def _warn(self, plan: Plan) -> None:
        if plan.missed:
            seconds = (plan.missed.end_at - plan.missed.start_at).total_seconds()
            log.warning("store_catching_up", node=self.reader.name, seconds=round(seconds))
        if plan.unrecoverable:
            seconds = plan.unrecoverable.total_seconds()
            log.error("store_gap_unrecoverable", node=self.reader.name, seconds=round(seconds))

    def _show(self, plan: Plan, pending: Sequence[Pending]) -> None:
        missed = [each.window for each in pending if each.reason == Reason.OUTAGE]
        gauge = STORE_WATERMARK_TIMESTAMP_SECONDS.labels(self.reader.name, self.reader.pubsub_topic)
        gauge.set(windows.searched_until(plan.watermark_at, missed).timestamp())

    # Windows of the past ----------------------------------------------------------------------------------------------

    async def _catch_up(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Read one page of the first of these windows, and return the windows that are still pending."""
        first, others = pending[0], pending[1:]
        self._begun_at.setdefault(first.pk, monotonic())
        if self._position.cursor != first.cursor:
            self._position = PagePosition(first.cursor, self._position.with_messages)
        found = self._pages.found
        try:
            position = await self._pages.read(
                windows.newest_slice(first.window), self._position, loop=LOOPS[first.reason]
            )
        except CursorLost:
            await self._progress.turn_page(first, "", number=self._connection)
            raise
        if self._pages.found > found:
            self._late_at = clock.now()
        if position:
            turned = await self._progress.turn_page(first, position.cursor, number=self._connection)
            self._position = position
            return [turned, *others]
        if left := await self._progress.finish_slice(first, number=self._connection):
            return [left, *others]
        self._finish(first)
        return others

    def _finish(self, pending: Pending) -> None:
        seconds = monotonic() - self._begun_at.pop(pending.pk)
        STORE_WINDOW_SECONDS.labels(self.reader.name, LOOPS[pending.reason]).observe(seconds)
        if pending.reason == Reason.OUTAGE:
            log.info("store_caught_up", node=self.reader.name, seconds=round(seconds))
