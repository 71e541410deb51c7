"""Runs of a canary: a round trip over its links, recorded in a row that is also its lock.

run ──▶ row ──▶ remove traces ──▶ link ──▶ link ──▶ ... ──▶ remove traces ──▶ row, status cache, log
                                  └── broken: diagnosis ────▲

Every run that ends removes its traces and closes its row, also after an error.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, IntegrityError, InterfaceError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from kit.db.partitions import delete_in_chunks
from kit.processes.status import StatusCache
from kit.processes.tasks import WORKER_STOP
from pushserver.console.canary.runs import BaseRun, RunState
from pushserver.console.health.judges import CanaryFacts, RoundTrip

log = structlog.get_logger(__name__)

# Runs are kept for this time.
KEPT = timedelta(days=7)
# The last result expires after this number of periods, and then the canary counts as missing.
MISSED_RUNS = 3
MIN_TTL_SECONDS = 300.0
POLL_SECONDS = 0.05
AGAIN_SECONDS = 2.0
# Seconds for which a canary waits for each answer.
ANSWER_SECONDS = 10.0
T = TypeVar("T")
RunT = TypeVar("RunT", bound=BaseRun)
# Yields the name of each link that held, and the milliseconds that it took.
Links = Generator[tuple[str, int], None, None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The broken link and its cause. ``detail`` is text about the cause for an operator, and may be empty."""

    link: str
    cause: str
    detail: str = ""


class ChainBroken(Exception):  # noqa: N818 - says what happened
    """A link of the chain is broken. ``diagnosis`` names it and the cause."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis


class Canary(ABC, Generic[RunT]):
    """The canary of one bridge. ``name`` identifies it in logs and in the status cache."""

    name: str

    @abstractmethod
    def rows(self) -> QuerySet[RunT]:
        """Return all runs."""

    @abstractmethod
    def links(self, run: RunT) -> Links:
        """Walk the chain, and yield each link that held.

        Raises ChainBroken at the first link that does not hold.
        """

    @abstractmethod
    def remove_traces(self) -> None:
        """Remove the rows that runs have left. While a run is under way, only that run may call this."""

    @abstractmethod
    def longest(self) -> timedelta:
        """Return a duration that is longer than any run. An older row belongs to a process that died."""

    @abstractmethod
    def is_expected(self) -> bool:
        """Return whether the settings schedule this canary."""

    def begin(self) -> dict[str, Any]:
        """Return values for the row of a new run."""
        return {}

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

    def run(self) -> RunT | None:
        """Make one round trip and record it, or return None while another run is under way. It takes seconds."""
        row = self._start(now=timezone.now())
        if row is None:
            return None
        try:
            return self._carry_out(row)
        except BaseException:
            # A bug, or an unavailable database. In that case the row stays `running` until `longest` has passed.
            row.state, row.finished_at = RunState.INTERRUPTED, timezone.now()
            with suppress(DatabaseError, InterfaceError):
                row.save(update_fields=["state", "finished_at"])
            raise

    def run_until_sound(self, *, seconds: float) -> None:
        """Make a round trip, and repeat it every few seconds while the chain is broken, for up to ``seconds``.

        So a repair shows within seconds.
        """
        until = time.monotonic() + seconds
        while (row := self.run()) and row.state == RunState.BROKEN and time.monotonic() + AGAIN_SECONDS < until:
            if WORKER_STOP.wait(AGAIN_SECONDS):
                return

    def is_under_way(self, *, now: datetime) -> bool:
        running = self.rows().filter(state=RunState.RUNNING, started_at__gte=now - self.longest())
        return running.exists()

    def purge(self, *, now: datetime, keep: timedelta = KEPT) -> Iterator[int]:
        """Remove runs older than ``keep``, and the traces of killed runs and of late copies of their messages."""
        if not self.is_under_way(now=now):
            self.remove_traces()
        old = self.rows().filter(started_at__lt=now - keep)
        return delete_in_chunks(old.order_by("started_at"))

    def _start(self, *, now: datetime) -> RunT | None:
        with transaction.atomic():
            lost = self.rows().filter(state=RunState.RUNNING, started_at__lt=now - self.longest())
            lost.update(state=RunState.INTERRUPTED, finished_at=now)
        with suppress(IntegrityError), transaction.atomic():
            return self.rows().create(started_at=now, **self.begin())
        return None

    def _carry_out(self, row: RunT) -> RunT:
        started = time.thread_time()
        try:
            self.remove_traces()
            found = self._walk(row)
        finally:
            self.remove_traces()
        row.work_ms = milliseconds(time.thread_time() - started)
        return self._finish(row, found)

    def _walk(self, row: RunT) -> Diagnosis | None:
        """Record the time of each link that holds, and return the diagnosis of the first one that does not."""
        try:
            with closing(self.links(row)) as links:
                for link, taken_ms in links:
                    setattr(row, f"{link}_ms", taken_ms)
        except ChainBroken as broken:
            return broken.diagnosis
        return None

    def _finish(self, row: RunT, found: Diagnosis | None) -> RunT:
        row.state, row.finished_at = RunState.PASSED, timezone.now()
        if found:
            row.state = RunState.BROKEN
            row.broken_link, row.cause, row.detail = found.link, found.cause, found.detail
        links = [f"{link}_ms" for link in row.timings()]
        row.save(update_fields=["state", "finished_at", "broken_link", "cause", "detail", "work_ms", *links])
        before = self.last()
        self.save(row)
        if found and (before is None or before.cause != found.cause):
            log.error("canary_broken", canary=self.name, link=found.link, cause=found.cause, detail=found.detail)
        elif not found:
            log.info("canary_passed", canary=self.name, ms=row.total_ms(), work_ms=row.work_ms)
        return row

    def save(self, row: RunT) -> None:
        """Save the result of a finished run in the status cache."""
        self.cache.save(RoundTrip(row.cause, words(row), row.total_ms(), row.is_dry_run))


def words(row: BaseRun) -> str:
    """Return a text for operators about the broken link and its cause."""
    if not row.cause:
        return "every link of the chain holds"
    text = row.Cause(row.cause).label
    return f"{text} ({row.detail})" if row.detail else str(text)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def wait_for(read: Callable[[], T], is_over: Callable[[T], object], *, seconds: float) -> T:
    """Poll ``read`` until ``is_over`` accepts its result or ``seconds`` have passed. Return the last result."""
    deadline = time.monotonic() + seconds
    while not is_over(found := read()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found
