"""Runs of a canary: a round trip over its links, recorded in a row that is also its lock.

run ──▶ row ──▶ remove traces ──▶ link ──▶ link ──▶ ... ──▶ remove traces ──▶ row, status cache, log
                                  └── broken: diagnosis ────▲

Every run that ends removes its traces and closes its row, also after an error.
"""

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, InterfaceError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from kit.processes.status import StatusCache
from kit.processes.tasks import WORKER_STOP
from notifications.messages import Outcome
from notifications.models import Attempt
from notifications.queues import halts
from pushserver.console.health.judges import CanaryFacts, RoundTrip
from pushserver.console.models import CanaryRun

log = structlog.get_logger(__name__)

State = CanaryRun.State
# The last result expires after this number of periods, and then the canary counts as missing.
MISSED_RUNS = 3
MIN_TTL_SECONDS = 300.0
AGAIN_SECONDS = 2.0
# Seconds for which a canary waits for each answer, and its pauses between two looks: longer ones for a late answer.
ANSWER_SECONDS = 10.0
POLL_SECONDS, LATE_POLL_SECONDS = 0.05, 0.25
LATE_SECONDS = 2.0
T = TypeVar("T")


class Diagnosis(NamedTuple):
    """The broken link and its cause. ``detail`` is text about the cause for an operator, and may be empty."""

    link: str
    cause: str
    detail: str = ""


class Link(NamedTuple):
    """One link of a chain. ``do`` returns how many milliseconds it took. Then ``diagnose`` says why it does not hold,
    or None.
    """

    name: str
    do: Callable[[], int]
    diagnose: Callable[[], Diagnosis | None]


# Made link by link, because what one link does may need what the links before it brought.
Chain: TypeAlias = Generator[Link, None, None]


@dataclass(frozen=True, slots=True)
class Canary:
    """The canary of one network. ``name`` identifies it in logs and in the status cache.

    ``remove_traces`` removes the rows that runs have left. While a run is under way, only that run may call it.
    ``longest`` is longer than any run: an older row belongs to a process that died. ``is_expected`` says whether the
    settings schedule the canary, and ``missing`` what it lacks to run, if anything.
    """

    network: str
    name: str
    chain: Callable[[CanaryRun], Chain]
    remove_traces: Callable[[], object]
    longest: Callable[[], timedelta]
    is_expected: Callable[[], bool]
    missing: Callable[[], str]
    is_dry_run: Callable[[], bool] = lambda: True

    def rows(self) -> QuerySet[CanaryRun]:
        return CanaryRun.objects.filter(network=self.network)

    @property
    def cache(self) -> StatusCache[RoundTrip]:
        """Return the status cache of the last result, which `/readyz` reads also while the database hangs."""
        return StatusCache(self.name, RoundTrip, max(MIN_TTL_SECONDS, MISSED_RUNS * settings.CANARY_PERIOD_SECONDS))

    def last(self) -> RoundTrip | None:
        """Return the result of the last run, or None without a recent run or without the cache."""
        return self.cache.read()

    def facts(self, *, is_blind: bool) -> CanaryFacts:
        """Return the facts for the indicator of this canary. Without Redis (``is_blind``) the last run is unknown."""
        return CanaryFacts(self.is_expected(), None if is_blind else self.last())

    def run(self) -> CanaryRun | None:
        """Make one round trip and record it, or return None while another run is under way. It takes seconds."""
        row = self._start(now=timezone.now())
        if row is None:
            return None
        try:
            return self._finish(row, self._carry_out(row))
        except BaseException:
            # A bug, or an unavailable database. In that case the row stays `running` until `longest` has passed.
            row.state, row.finished_at = State.INTERRUPTED, timezone.now()
            with suppress(DatabaseError, InterfaceError):
                row.save(update_fields=["state", "finished_at"])
            raise

    def run_until_sound(self, *, seconds: float) -> None:
        """Make a round trip, and repeat it every few seconds while the chain is broken, for up to ``seconds``.

        So a repair shows within seconds.
        """
        until = time.monotonic() + seconds
        while (row := self.run()) and row.state == State.BROKEN and time.monotonic() + AGAIN_SECONDS < until:
            if WORKER_STOP.wait(AGAIN_SECONDS):
                return

    def remove_leftovers(self, *, now: datetime) -> None:
        """Remove the traces of killed runs, and of late copies of their messages, unless a run is under way."""
        if not self.rows().filter(state=State.RUNNING, started_at__gte=now - self.longest()).exists():
            self.remove_traces()

    def _start(self, *, now: datetime) -> CanaryRun | None:
        lost = self.rows().filter(state=State.RUNNING, started_at__lt=now - self.longest())
        lost.update(state=State.INTERRUPTED, finished_at=now)
        with suppress(IntegrityError), transaction.atomic():
            return self.rows().create(network=self.network, started_at=now, is_dry_run=self.is_dry_run())
        return None

    def _carry_out(self, row: CanaryRun) -> Diagnosis | None:
        began = time.thread_time()
        try:
            self.remove_traces()
            return self._walk(row)
        finally:
            self.remove_traces()
            row.work_ms = milliseconds(time.thread_time() - began)

    def _walk(self, row: CanaryRun) -> Diagnosis | None:
        """Record the time of each link that holds, and return the diagnosis of the first one that does not."""
        with closing(self.chain(row)) as chain:
            for link in chain:
                taken_ms = link.do()
                if found := link.diagnose():
                    return found
                row.times[link.name] = taken_ms
        return None

    def _finish(self, row: CanaryRun, found: Diagnosis | None) -> CanaryRun:
        row.state, row.finished_at = State.PASSED, timezone.now()
        if found:
            row.state = State.BROKEN
            row.broken_link, row.cause, row.detail = found
        row.save(update_fields=["state", "finished_at", "broken_link", "cause", "detail", "work_ms", "times"])
        before = self.last()
        self.save(row)
        if found and (before is None or before.cause != found.cause):
            log.error("canary_broken", canary=self.name, link=found.link, cause=found.cause, detail=found.detail)
        elif not found:
            log.info("canary_passed", canary=self.name, ms=row.total_ms(), work_ms=row.work_ms)
        return row

    def save(self, row: CanaryRun) -> None:
        """Save the result of a finished run in the status cache."""
        detail = f" ({row.detail})" if row.detail else ""
        words = f"{row.cause_in_words()}{detail}" if row.cause else "every link of the chain holds"
        self.cache.save(RoundTrip(row.cause, words, row.total_ms(), row.is_dry_run))


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def wait_for(read: Callable[[], T], is_over: Callable[[T], object]) -> T:
    """Poll ``read`` until ``is_over`` accepts its result, for ANSWER_SECONDS at most. Return the last result."""
    began = time.monotonic()
    while not is_over(found := read()) and (waited := time.monotonic() - began) < ANSWER_SECONDS:
        time.sleep(POLL_SECONDS if waited < LATE_SECONDS else LATE_POLL_SECONDS)
    return found


# The link of the gateway, which every chain has -----------------------------------------------------------------------
def gateway(attempts: Callable[[], QuerySet[Attempt]]) -> Link:
    """Return the link of the push that has the newest of these attempts. Its time is the gateway's own."""

    def wait() -> int:
        push = wait_for(lambda: attempts().order_by("-pk").first(), lambda found: found and found.outcome)
        return (push and push.latency_ms) or 0

    return Link("gateway", wait, lambda: diagnose_push(attempts()))


def diagnose_push(attempts: QuerySet[Attempt]) -> Diagnosis | None:
    """Return why the gateway has not taken the push, or None if it has."""
    push = attempts.order_by("-pk").first()
    if push is None:
        drained, idle = "an operator stopped delivery: no push is tried", "no worker tries the push"
        return Diagnosis("gateway", "worker", drained if halts.drain() else idle)
    if push.outcome == Outcome.DELIVERED:
        return None
    return Diagnosis("gateway", "gateway", f"{push.outcome}: {push.code}" if push.outcome else "it does not answer")
