"""The loop of a worker: it looks for rows, processes a batch, and waits for a wakeup.

After a failed commit, each step of the batch works in a transaction of its own, and takes one item, then two, four, and
so on. An item that fails alone comes again later if another session keeps its row locked, and is quarantined otherwise.
A batch that collided with another worker is repeated as it was, and so is a single item that meets a conflict.
"""

import select
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from math import inf
from time import monotonic, sleep
from typing import Any

import psycopg
import structlog
from django.db import Error, connection, transaction

from kit.batches.batch import LIMIT, Batch, Step, Wakeup, Work, wake_peers
from kit.batches.looking import OVERLAP, WaitingRows
from kit.db.base import write
from kit.db.clock import clock
from kit.db.reasons import is_collision, is_conflict, is_lock_timeout, is_unavailable, reason, sqlstate
from kit.http import Backoff
from kit.processes.starting import note_refusal
from kit.processes.status import ChangeFilter
from kit.telemetry import BatchTrace

log = structlog.get_logger(__name__)

# A batch has a fixed cost. Under light load, it begins this long after the last one, and then takes a few more items.
PAUSE_SECONDS = 0.02
# Another worker may insert the same row at the same moment. The row is committed by the time this worker fails on it.
ATTEMPTS = 3
# How often, over some 20 s, an item that meets a conflict alone is tried again. After that, no other worker causes the
# conflict, and the item would block all others for ever.
WAITS = 12
# A step that works in a transaction of its own waits only this long for a lock. After a batch has waited in vain for
# one, all steps do so for a minute. Otherwise each batch that needs the same locked row would wait for the whole
# `lock_timeout`.
LOCK_TIMEOUT = "100ms"
APART_SECONDS = 60
MAX_BACKOFF_SECONDS = 2.0


class Worker:
    """Processes batches in the calling thread until `stop`."""

    def __init__(self, steps: Sequence[Step], wakeup: Wakeup) -> None:
        self._steps = steps
        self._wakeup = wakeup
        self._rows = WaitingRows(steps)
        self._limits = dict.fromkeys(steps, LIMIT)  # of the items that each step takes
        self._apart_until = 0.0
        self._conflicts: Counter[Step] = Counter()  # by step, how often its single item has met one
        self._stopping = threading.Event()
        self._stop_at = inf

    def run(self) -> None:
        """Process batches until `stop`. While the database is unavailable, wait, and log the reason when it changes."""
        backoff, change_filter = Backoff(MAX_BACKOFF_SECONDS), ChangeFilter()
        while not self._is_over():
            started = monotonic()
            try:
                self._rows.connect()
                if self.process_batch(now=clock.now()):
                    self._rows.read_notifications()  # these rows must not wait behind the rest of a step
                else:
                    self._wait(started + PAUSE_SECONDS)
                if backoff.works():
                    change_filter = ChangeFilter()
                    log.info("batches_go_on")
            except (Error, psycopg.Error) as error:
                note_refusal(error)
                if change_filter.has_changed(why := reason(error)):
                    log.warning("batch_postponed", error=type(error).__name__, reason=why)
                self._rows.disconnect()
                sleep(backoff.next())
        connection.close()

    def stop(self, *, timeout_seconds: float) -> None:
        """Take no more rows, and end when no step is under way, or after the timeout."""
        self._stop_at = monotonic() + timeout_seconds
        self._stopping.set()
        self._wakeup.set()

    def roll_back(self) -> None:
        """Prepare the end of the process in the middle of a batch, from another thread."""
        for step in self._steps:
            step.rolled_back(Batch(0, clock.now()))

    def _is_over(self) -> bool:
        is_waiting = monotonic() < self._stop_at and any(step.is_under_way() for step in self._steps)
        return self._stopping.is_set() and not is_waiting

    def process_batch(self, *, now: datetime) -> bool:
        """Process one batch, and return whether rows are left for the next one."""
        if monotonic() >= self._rows.look_at:
            self._rows.look(now=now, is_stopping=self._stopping.is_set())
        self._work_together(now)
        self._work_apart(now)
        return not self._rows.steps.isdisjoint(self._active())

    def _active(self) -> Sequence[Step]:
        """Return the steps. A process that is to stop skips those that take rows, but for results of its own."""
        is_stopping = self._stopping.is_set()
        return [step for step in self._steps if not (is_stopping and step.takes_rows) or step.is_under_way()]

    def _has_items(self, step: Step) -> bool:
        at = step.next_at()
        return step in self._rows.steps or (at is not None and at <= monotonic())

    def _work_together(self, now: datetime) -> None:
        """Let steps work in one transaction, as usual. After a failure, those that had begun are careful."""
        usual = [step for step in self._active() if not self._is_apart(step)]
        begun: dict[Step, Batch] = {}
        for _ in range(ATTEMPTS):
            error = self._try(usual, now, begun)
            if error is None:
                return
            if is_lock_timeout(error):
                self._apart_until = monotonic() + APART_SECONDS
            if not is_conflict(error):
                log.warning("batch_split", error=type(error).__name__, sqlstate=sqlstate(error))
                break
            log.info("batch_collided", error=type(error).__name__)
        self._limits.update({step: 1 for step in begun if not step.follows})

    def _is_apart(self, step: Step) -> bool:
        return self._limits[step] < LIMIT or monotonic() < self._apart_until

    def _work_apart(self, now: datetime) -> None:
        """Let other steps work in a transaction of their own, with twice as many items after each success.

        A conflict of a single item is raised after all steps have worked, so that the item is tried again.
        """
        conflict: Exception | None = None
        for step in [step for step in self._active() if self._is_apart(step) and self._has_items(step)]:
            begun: dict[Step, Batch] = {}
            error = self._try([step], now, begun)
            if error is None:
                self._limits[step] = min(2 * self._limits[step], LIMIT)
            elif self._limits[step] > 1:
                self._limits[step] = 1
            elif self._may_pass(step, error):
                conflict = error
            else:
                self._set_aside(step, error, begun[step])
        if conflict:
            raise conflict

    def _may_pass(self, step: Step, error: Exception) -> bool:
        """Return whether another session causes the error of a single item, so that a later attempt can succeed."""
        self._conflicts[step] += is_conflict(error)
        return is_collision(error) or (is_conflict(error) and self._conflicts[step] <= WAITS)

    def _set_aside(self, step: Step, error: Exception, batch: Batch) -> None:
        """Leave the item that failed alone for later if another session keeps its row locked, or quarantine it."""
        with transaction.atomic(durable=True):
            if is_lock_timeout(error):
                step.again(batch)
            else:
                step.quarantine(error, batch)
        del self._conflicts[step]

    def _try(self, steps: Collection[Step], now: datetime, begun: dict[Step, Batch]) -> Exception | None:
        """Let steps work in one transaction. Return the error that rolled it back, and raise that of an outage.

        ``begun`` gets the input of each step that has begun.
        """
        begun.clear()
        trace = BatchTrace()
        try:
            with transaction.atomic(durable=True):
                if any(map(self._is_apart, steps)):
                    write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                worked = self._work(steps, now, begun, trace)
                left = {step for step, work in worked if work.is_more_left and not self._stopping.is_set()}
                if left and self._rows.is_leader:
                    wake_peers()
        except BaseException as error:
            self._rows.steps |= {step for step in begun if step.takes_rows}
            for step, batch in begun.items():
                step.rolled_back(batch)
            if not isinstance(error, Exception) or is_unavailable(error):
                raise
            return error
        self._rows.steps |= left
        if clock.now() - now > OVERLAP / 2:  # marks may have passed the time that it has written into rows
            self._rows.search_from_beginning()
        self._committed(worked)
        trace.committed()
        return None

    def _work(
        self, steps: Collection[Step], now: datetime, begun: dict[Step, Batch], trace: BatchTrace
    ) -> Sequence[tuple[Step, Work[Any]]]:
        """Let those of these steps work that have items, and those that follow them and were handed some."""
        handed: list[object] = []
        worked = []
        for step in self._steps:
            if handed if step.follows else step in steps and self._has_items(step):
                self._rows.steps.discard(step)  # rows that are announced from now on are for the next batch
                begun[step] = Batch(self._limits[step], now, handed, nothing_before=self._rows.mark(step))
                with trace.step(type(step).__name__):
                    work = step.work(begun[step])
                worked.append((step, work))
                handed += work.handed
        return worked

    def _committed(self, worked: Sequence[tuple[Step, Work[Any]]]) -> None:
        """Call `committed` of each step. Everything is committed, so an error of one step must not stop the others."""
        for step, work in worked:
            self._conflicts.pop(step, None)
            try:
                step.committed(work.decided)
            except Exception as error:  # noqa: BLE001 - the other steps go on after any error
                log.error("after_commit_failed", step=type(step).__name__, error=type(error).__name__)  # noqa: TRY400

    def _wait(self, not_before: float) -> None:
        """Sleep until rows are announced or items in memory are due, but at least until ``not_before``.

        A wakeup means that the memory of a step has changed. If its items are due later, the wait continues, because an
        empty batch would begin another pause.
        """
        sleep(max(not_before - monotonic(), 0.0))
        self._rows.read_notifications()
        while not self._rows.steps:
            seconds = min(self._rows.look_at, self._next_at()) - monotonic()
            if seconds <= 0:
                return
            files: list[Any] = [self._wakeup, self._rows.session]
            readable, _, _ = select.select(files, [], [], seconds)
            if self._wakeup in readable:
                self._wakeup.clear()
            if self._rows.session in readable:
                self._rows.read_notifications()
            if self._stopping.is_set():
                return

    def _next_at(self) -> float:
        """Return when the next items in memory are due, or infinity without such items."""
        return min((at for step in self._active() if (at := step.next_at()) is not None), default=inf)
