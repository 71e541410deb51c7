"""The bound of the inbox: a limit of the envelopes that wait. The bridge keeps it, so it holds also without a worker.

An envelope that was not opened yet may be about a proven address, so none of these is dropped. While more than the
limit of them wait, the bridge takes in no page, and the stores keep new messages. Of the envelopes that were postponed,
or that wait for the key of their topic, the oldest are dropped. It costs one statement a second, on indexes alone.
"""

import psycopg
import structlog

from kit.backoff import Backoff
from kit.batches.marks import AT_FIRST, BEGINNING, OVERLAP
from kit.db.clock import clock
from kit.db.reasons import STATEMENT_TIMEOUT
from kit.processes.leader import Term
from waku_bridge.inbox import inbox
from waku_bridge.metrics import ENVELOPES_PROCESSED
from waku_bridge.reading.intake import Intake

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 1.0
# Longest pause while the database fails. Each failure costs the bridge its connection and all topics loaded over it.
MAX_SECONDS = 5.0
# Envelopes of one state that a statement drops at most. Where more are to be dropped, the next statement follows at
# once.
MAX_DROPPED = 5000


class Bound:
    """The bound: at most ``limit`` envelopes wait unopened, as many postponed, and as many for a key."""

    def __init__(self, intake: Intake, *, limit: int) -> None:
        self._intake = intake
        self._limit = limit
        self._backoff = Backoff(MAX_SECONDS)
        self._nothing_before = BEGINNING  # no unopened envelope is older

    async def run(self, term: Term) -> None:
        """Enforce the bound until the term is over, and then release readers that wait for capacity."""
        try:
            while not term.is_over:
                await term.pause(await self._enforce())
        finally:
            self._intake.has_capacity.set()

    async def _enforce(self) -> float:
        """Drop envelopes beyond the limit, note whether the inbox has capacity, and return the pause in seconds."""
        values = {
            "now": clock.now(),
            "limit": self._limit,
            "max_dropped": MAX_DROPPED,
            "nothing_before": self._nothing_before,
        }
        try:
            [(dropped, is_full, oldest, now)] = await self._intake.session.execute(inbox.BOUND, values)
        except psycopg.Error as error:  # the readers log what is wrong with the database
            # The statement read too many dead index entries, because some session keeps an old snapshot open.
            if isinstance(error.__cause__, TimeoutError) or error.sqlstate == STATEMENT_TIMEOUT:
                self._nothing_before = max(self._nothing_before, clock.now() - OVERLAP - AT_FIRST)
            return max(self._backoff.next(), PERIOD_SECONDS)
        self._backoff.works()
        now = clock.set(now)
        self._nothing_before = min(oldest or now, now - OVERLAP)
        if dropped:
            log.warning("envelopes_dropped", reason=inbox.OVERLOAD, count=dropped)
            ENVELOPES_PROCESSED.labels("unknown", inbox.OVERLOAD).inc(dropped)
        self._note(is_full=is_full)
        return 0.0 if dropped >= MAX_DROPPED else PERIOD_SECONDS

    def _note(self, *, is_full: bool) -> None:
        has_capacity = self._intake.has_capacity
        if is_full and has_capacity.is_set():
            log.error("inbox_full", limit=self._limit)
            has_capacity.clear()
        elif not is_full and not has_capacity.is_set():
            log.info("inbox_has_room")
            has_capacity.set()
