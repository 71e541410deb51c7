"""A run of a canary: its row is its lock, it is closed whatever happens, and its traces are removed.

run ──▶ row ──▶ remove traces ──▶ link ──▶ link ──▶ ... ──▶ remove traces ──▶ row, status cache, log
└── breaks: its diagnosis ──────▲
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

from kit.canary.runs import BaseRun, RunState
from kit.db.deleting import delete_in_chunks
from kit.health.canaries import CanaryFacts, RoundTrip
from kit.health.status_cache import StatusCache
from kit.processes.stopping import WORKER_STOP

log = structlog.get_logger(__name__)

# Runs are kept for so long.
KEPT = timedelta(days=7)
# The canary counts as missing when this many runs did not come.
MISSED_RUNS = 3
MIN_TTL_SECONDS = 300.0
POLL_SECONDS = 0.05
AGAIN_SECONDS = 2.0
# How long a canary waits for each answer.
ANSWER_SECONDS = 10.0
T = TypeVar("T")
RunT = TypeVar("RunT", bound=BaseRun)
# The links that held, one after the other, each with its name and the milliseconds that it took.
Links = Generator[tuple[str, int], None, None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The link that broke, and the cause. ``detail`` is more about the cause, for an operator, and may be empty."""

    link: str
    cause: str
    detail: str = ""


class ChainBroken(Exception):  # noqa: N818 - says what happened
    """A link of the chain does not hold, for the reason in ``diagnosis``."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis


@dataclass(frozen=True, slots=True)
class Last:
    """The result of the last run. ``broken_link`` and ``cause`` are empty when all links held.

    ``words`` say what is broken, for an operator. ``timings_ms`` are by link, in the order of the chain, and None for
    links that were not reached.
    """

    finished_at: datetime
    is_dry_run: bool
    broken_link: str
    cause: str
    words: str
    timings_ms: dict[str, int | None]


class Canary(ABC, Generic[RunT]):
    """The canary of one bridge. ``name`` is what logs and the status cache call it."""

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
        """Remove everything that any run left. Only the run that is under way may call it while there is one."""

    @abstractmethod
    def longest(self) -> timedelta:
        """Return a time that no living run takes."""

    @abstractmethod
    def is_expected(self) -> bool:
        """Return whether the settings have the canary run by itself."""

    def begin(self) -> dict[str, Any]:
        """Return the columns that a run begins with."""
        return {}

    @property
    def cache(self) -> StatusCache[Last]:
        """Return where the last result is kept: for `/readyz`, which must answer while the database hangs."""
        return StatusCache(self.name, Last, max(MIN_TTL_SECONDS, MISSED_RUNS * settings.CANARY_PERIOD_SECONDS))

    def last(self) -> Last | None:
        """Return the result of the last run, or None when there was none lately or the cache is away."""
        return self.cache.read()

    def facts(self, *, is_blind: bool) -> CanaryFacts:
        """Return what its indicator is judged by. Without Redis (``is_blind``) nothing is known."""
        last = None if is_blind else self.last()
        if last is None:
            return CanaryFacts(self.is_expected())
        within = self.rows().model.WITHIN
        total_ms = sum(taken or 0 for link, taken in last.timings_ms.items() if link not in within)
        trip = RoundTrip(last.finished_at, bool(last.cause), last.words, total_ms, is_dry_run=last.is_dry_run)
        return CanaryFacts(self.is_expected(), trip)

    def run(self) -> RunT | None:
        """Make one round trip and record it, or return None when another one is under way.

        It takes seconds, nearly all of them waiting.
        """
        row = self._start(now=timezone.now())
        if row is None:
            return None
        try:
            return self._carry_out(row)
        except BaseException:
            # This is a fault of ours, or the database is away. In that case the row stays until it is too old to belong
            # to a living run.
            row.state, row.finished_at = RunState.INTERRUPTED, timezone.now()
            with suppress(DatabaseError, InterfaceError):
                row.save(update_fields=["state", "finished_at"])
            raise

    def run_until_sound(self, *, seconds: float) -> None:
        """Make a round trip, and further ones soon after each other while the chain is broken and the time is not up:
        whatever mends it is seen within seconds.
        """
        until = time.monotonic() + seconds
        while (row := self.run()) and row.state == RunState.BROKEN and time.monotonic() + AGAIN_SECONDS < until:
            if WORKER_STOP.wait(AGAIN_SECONDS):
                return

    def is_under_way(self, *, now: datetime) -> bool:
        """Return whether a run is under way."""
        running = self.rows().filter(state=RunState.RUNNING, started_at__gte=now - self.longest())
        return running.exists()

    def purge(self, *, now: datetime, keep: timedelta) -> Iterator[int]:
        """Remove runs older than ``keep``, and what a killed run, or a late copy of its messages, left behind."""
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
        """Note how long each link took that held, and return what is wrong with the first one that did not."""
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
        """Save the result of a run that is over."""
        if row.finished_at is None:
            raise ValueError("the run is not over")
        result = (row.broken_link, row.cause, words(row), row.timings())
        self.cache.save(Last(row.finished_at, row.is_dry_run, *result))


def words(row: BaseRun) -> str:
    """Return what is broken, for an operator."""
    if not row.cause:
        return "every link of the chain holds"
    text = row.Cause(row.cause).label
    return f"{text} ({row.detail})" if row.detail else str(text)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def wait_for(read: Callable[[], T], is_over: Callable[[T], object], *, seconds: float) -> T:
    """Read until it is over or the time is up, and return what was read last."""
    deadline = time.monotonic() + seconds
    while not is_over(found := read()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found
