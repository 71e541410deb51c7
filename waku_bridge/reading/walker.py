"""The store path: reads a node's store of one shard again and again, and brings what the live path missed.

Each pass reads the last minute whole, whatever is known of it already: see `windows`. Pages are asked for hashes only,
and for messages by their hashes where we do not know them; where most are unknown, for everything at once. The shard is
asked for, and never content topics: nwaku takes ten of those at most, and we have a million.

After an outage the pass comes first, and what was missed follows page by page, newest first, between passes. What has
been read of it is noted, so a restart goes on. A cursor is only ever used for the next page of the same slice: it names
a message of one store, and what that store inserts before it later on is never seen by whoever goes on from there.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic

import psycopg
import structlog
from django.db import Error as DjangoDatabaseError

from waku_bridge.inbox import Path
from waku_bridge.metrics import STORE_ERRORS, STORE_WATERMARK_TIMESTAMP_SECONDS, STORE_WINDOW_SECONDS
from waku_bridge.node import Busy, CursorLost, NodeError
from waku_bridge.reading import progress, windows
from waku_bridge.reading.backoff import Backoff
from waku_bridge.reading.intake import Intake
from waku_bridge.reading.leases import Term
from waku_bridge.reading.progress import Pending, Reason
from waku_bridge.reading.sightings import Reader
from waku_bridge.reading.store_pages import Place, Store, StorePages
from waku_bridge.reading.threads import in_thread
from waku_bridge.reading.windows import Plan, Window

log = structlog.get_logger(__name__)

BUSY_SECONDS = 60.0
# How often a pass begins again because the store lost the place; then it waits like after any failure.
ATTEMPTS = 3
LOOPS = {Reason.OUTAGE: "backfill", Reason.LOST_REPLY: "backfill", Reason.LATE: "slow"}


class StoreWalker:
    """Reads one shard from one store while it has the lease. Of an outage, ``recovery`` is caught up with at most."""

    def __init__(
        self, node: Store, pubsub_topic: str, intake: Intake, *, period_seconds: float, recovery: timedelta
    ) -> None:
        self.reader = Reader("store", node.url, pubsub_topic)
        self._pages = StorePages(node, self.reader, intake, Path.STORE)
        self._intake = intake
        self._period_seconds = period_seconds
        self._recovery = recovery
        self._backoff = Backoff()
        # Of what is caught up with: whether the next page is asked for with messages, and when each window was begun.
        self._with_messages = True
        self._begun_at: dict[int, float] = {}

    async def run(self, term: Term) -> None:
        while not term.is_over:
            await term.pause(await self._go_once(term))
        self._intake.fails(self.reader)

    async def _go_once(self, term: Term) -> float:
        """One pass, and as much of the past as fits in before the next; returns how long to wait, in seconds.

        Where passes take long, what is past gets as much time as they: neither keeps the other waiting for ever.
        """
        began = monotonic()
        next_pass = began + self._period_seconds
        try:
            pending = await self._pass(term)
            next_pass = max(next_pass, 2 * monotonic() - began) if pending else next_pass
            while pending and not term.is_over and monotonic() < next_pass:
                pending = await self._catch_up(pending)
        except NodeError as error:
            return self._failed(error)
        except (DjangoDatabaseError, psycopg.Error) as error:
            log.warning("store_postponed", node=self.reader.name, error=type(error).__name__)
            return self._backoff.next()
        self._worked()
        return max(next_pass - monotonic(), 0.0)

    def _failed(self, error: NodeError) -> float:
        STORE_ERRORS.labels(self.reader.name, error.code).inc()
        if not self._backoff.failures:
            log.warning("store_lost", node=self.reader.name, error=str(error))
        self._intake.fails(self.reader)
        pause = self._backoff.next()
        return BUSY_SECONDS + pause if isinstance(error, Busy) else pause

    def _worked(self) -> None:
        if self._backoff.failures:
            log.info("store_back", node=self.reader.name, failures=self._backoff.failures)
        self._backoff.reset()
        self._intake.works(self.reader)

    # What is fresh ----------------------------------------------------------------------------------------------------

    async def _pass(self, term: Term) -> Sequence[Pending]:
        """Read the last minute, then move the watermark; returns what is left to do."""
        before = await in_thread(progress.load, self.reader.node, self.reader.pubsub_topic)
        plan = windows.plan(
            watermark_at=before.watermark_at,
            late_searched_at=before.late_searched_at,
            now=before.now,
            recovery=self._recovery,
        )
        with STORE_WINDOW_SECONDS.labels(self.reader.name, "fast").time():
            is_complete = await self._read_whole(plan.fresh, term)
        if not is_complete:
            return ()
        self._warn(plan)
        pending = await in_thread(progress.advance, before, plan)
        self._show(plan, pending)
        return pending

    async def _read_whole(self, window: Window, term: Term) -> bool:
        """Whether its last page was reached. When the store lost the place, the window is read from its beginning."""
        for _ in range(ATTEMPTS):
            try:
                return await self._read_through(window, term)
            except CursorLost as error:
                STORE_ERRORS.labels(self.reader.name, error.code).inc()
                log.info("store_lost_the_place", node=self.reader.name)
        raise NodeError(f"{self.reader.name} lost the place {ATTEMPTS} times")

    async def _read_through(self, window: Window, term: Term) -> bool:
        place: Place | None = Place()
        while place and not term.is_over:
            place = await self._pages.read(window, place, loop="fast")
        return place is None

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

    # What is past -----------------------------------------------------------------------------------------------------

    async def _catch_up(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Read one page of the first of these windows; returns what is left to do."""
        first, others = pending[0], pending[1:]
        self._begun_at.setdefault(first.pk, monotonic())
        try:
            place = await self._pages.read(
                windows.newest_slice(first.window),
                Place(first.cursor, self._with_messages),
                loop=LOOPS[first.reason],
            )
        except CursorLost:
            await in_thread(progress.turn_page, first, "")
            raise
        if place:
            self._with_messages = place.with_messages
            await in_thread(progress.turn_page, first, place.cursor)
            return [replace(first, cursor=place.cursor), *others]
        left = windows.rest(first.window)
        await in_thread(progress.finish_slice, first, left)
        if left:
            return [replace(first, window=left, cursor=""), *others]
        self._finish(first)
        return others

    def _finish(self, pending: Pending) -> None:
        seconds = monotonic() - self._begun_at.pop(pending.pk)
        STORE_WINDOW_SECONDS.labels(self.reader.name, LOOPS[pending.reason]).observe(seconds)
        if pending.reason == Reason.OUTAGE:
            log.info("store_caught_up", node=self.reader.name, seconds=round(seconds))
