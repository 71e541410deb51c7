"""The loop of a worker: it looks for rows, processes a batch, and waits for a wakeup.

Rows are the queue. A process that writes rows sends a NOTIFY on a channel of PostgreSQL in the same transaction. Only
one worker, the leader, listens on that channel; it holds an advisory lock. When the leader finds more rows than fit
into a batch, it wakes its peers, and each takes the rows that it can lock (`SKIP LOCKED`). So a message at night wakes
one process, and under load all workers process batches. Each worker also looks for rows once a second. So a worker that
hangs or died delays rows by a second and stops nothing.

After a failed commit, each step of the batch works in a transaction of its own, and takes one item, then two, four, and
so on. An item that fails alone comes again later if another session keeps its row locked, and is quarantined otherwise.
A batch that collided with another worker is repeated as it was.
"""

import select
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from time import monotonic, sleep
from typing import Any, LiteralString

import psycopg
import structlog
from django.db import Error, connection, transaction

from kit.backoff import Backoff
from kit.batches.batch import (
    CHANNEL,
    HALF,
    LIMIT,
    WAKE_PEERS,
    Batch,
    Step,
    Wakeup,
    Work,
    wake_peers,
)
from kit.batches.marks import OVERLAP, Marks
from kit.buckets.shared import COUNTED_EVERY_SECONDS, own_share
from kit.db.clock import clock
from kit.db.reasons import is_collision, is_conflict, is_lock_timeout, is_unavailable, reason, sqlstate
from kit.db.sessions import BATCH_WORKER, set_all
from kit.db.statements import fetch, write
from kit.processes.leader import BATCHES, TRY, LeaderLock
from kit.processes.starting import note_refusal
from kit.processes.status import ChangeFilter
from kit.tracing import BatchTrace

log = structlog.get_logger(__name__)

# A batch has a fixed cost. Under light load, it begins this long after the last one, and then takes a few more items.
PAUSE_SECONDS = 0.02
# Workers look for rows this often, because a NOTIFY is lost with its connection or its listener.
LOOK_SECONDS = 1.0
# Another worker may insert the same row at the same moment. The row is committed by the time this worker fails on it.
ATTEMPTS = 3
# How often, over some 20 s, an item that meets a conflict alone is tried again. After that, no other worker causes the
# conflict, and the item would block all others for ever.
WAITS = 12
# A careful step waits only this long for a lock. After a batch has waited in vain for one, its steps are careful for a
# minute, and soon take half as many items. Otherwise each batch that needs the same locked row would wait for the whole
# `lock_timeout`.
LOCK_TIMEOUT = "100ms"
CAREFUL_SECONDS = 60
MAX_BACKOFF_SECONDS = 2.0


class Worker:
    """Processes batches in the calling thread until `stop`."""

    def __init__(self, steps: Sequence[Step], wakeup: Wakeup) -> None:
        self._steps = steps
        self._wakeup = wakeup
        self._limits = dict.fromkeys(steps, LIMIT)  # of the items that each step takes; below it a step is careful
        self._careful_until = 0.0
        self._with_rows: set[Step] = set()  # the steps that have waiting rows
        self._marks = Marks({_name(step): step.oldest for step in steps if step.oldest})
        self._look_at = self._count_at = 0.0  # when it looks for rows, and counts the live workers
        self._conflicts: Counter[Step] = Counter()  # by step, how often its single item has met one
        self._listening: psycopg.Connection | None = None
        self._is_leader = False
        self._stopping = threading.Event()
        self._stop_at = float("inf")

    def run(self) -> None:
        """Process batches until `stop`. While the database is unavailable, wait, and log the reason when it changes."""
        backoff, change_filter = Backoff(MAX_BACKOFF_SECONDS), ChangeFilter()
        while not self._is_over():
            started = monotonic()
            try:
                self._listen()
                if self.process_batch(now=clock.now()):
                    self._read_notifications()  # so that rows announced meanwhile do not wait behind the rest of a step
                else:
                    self._wait(started + PAUSE_SECONDS)
                if backoff.works():
                    change_filter = ChangeFilter()
                    log.info("batches_go_on")
            except (Error, psycopg.Error) as error:
                note_refusal(error)
                if change_filter.has_changed(why := reason(error)):
                    log.warning("batch_postponed", error=type(error).__name__, reason=why)
                self._disconnect()
                sleep(backoff.next())
        connection.close()

    def stop(self, *, timeout_seconds: float) -> None:
        """Take no more rows, and end when no step is under way, or after the timeout."""
        self._stop_at = monotonic() + timeout_seconds
        self._stopping.set()
        self._wakeup.set()

    def cut_off(self) -> None:
        """Prepare the end of the process in the middle of a batch, from another thread."""
        for step in self._steps:
            step.cut_off()

    def _is_over(self) -> bool:
        is_waiting = monotonic() < self._stop_at and any(step.is_under_way() for step in self._steps)
        return self._stopping.is_set() and not is_waiting

    # One batch --------------------------------------------------------------------------------------------------------

    def process_batch(self, *, now: datetime) -> bool:
        """Process one batch, and return whether rows are left for the next one."""
        if monotonic() >= self._look_at:
            self._look(now)
        self._work_together(now)
        self._work_apart(now)
        return bool(self._with_rows)

    def _active(self) -> Sequence[Step]:
        """Return the steps. A process that is to stop skips those that take rows, but for results of its own."""
        is_stopping = self._stopping.is_set()
        return [step for step in self._steps if not (is_stopping and step.takes_rows) or step.is_under_way()]

    def _work_together(self, now: datetime) -> None:
        """Let steps work in one transaction, as usual. After a failure, those that had begun are careful."""
        usual = [step for step in self._active() if self._limits[step] == LIMIT]
        for _ in range(ATTEMPTS):
            begun: dict[Step, Batch] = {}
            try:
                return self._run(usual, now, begun)
            except Exception as error:
                if is_unavailable(error):
                    raise
                if is_lock_timeout(error):
                    self._careful_until = monotonic() + CAREFUL_SECONDS
                if not is_conflict(error):
                    log.warning("batch_split", error=type(error).__name__, sqlstate=sqlstate(error))
                    break
                log.info("batch_collided", error=type(error).__name__)
        self._limits.update({step: 1 for step in begun if not step.follows})
        return None

    def _work_apart(self, now: datetime) -> None:
        """Let each careful step work in a transaction of its own, with twice as many items after each success.

        A conflict of a single item is raised after all steps have worked, so that the item is tried again.
        """
        conflict: Exception | None = None
        careful = [step for step in self._active() if self._limits[step] < LIMIT]
        for step in [step for step in careful if step in self._with_rows or _is_due(step)]:
            begun: dict[Step, Batch] = {}
            try:
                self._run([step], now, begun)
            except Exception as error:
                if is_unavailable(error):
                    raise
                if self._limits[step] > 1:
                    self._limits[step] = 1
                elif self._may_pass(step, error):
                    conflict = error
                else:
                    self._set_aside(step, error, begun[step])
            else:
                highest = LIMIT if monotonic() >= self._careful_until else HALF
                self._limits[step] = min(2 * self._limits[step], highest)
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

    def _run(self, steps: Collection[Step], now: datetime, begun: dict[Step, Batch]) -> None:
        """Let steps, and those that follow them, work in one transaction. ``begun`` gets the input of each."""
        waited = self._with_rows & {*steps}
        self._with_rows -= waited  # rows announced from now on are for the next batch
        trace = BatchTrace()
        try:
            with transaction.atomic(durable=True):
                if any(self._limits[step] < LIMIT for step in steps):
                    write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                worked = self._work(steps, waited, now, begun, trace)
                left = {step for step, work in worked if work.is_more_left and not self._stopping.is_set()}
                if left and self._is_leader:
                    wake_peers()
        except BaseException:
            self._with_rows |= waited
            for step, batch in begun.items():
                step.rolled_back(batch)
            raise
        self._with_rows |= left
        if clock.now() - now > OVERLAP / 2:  # marks may have passed the time that it has written into rows
            self._marks.search_from_beginning()
        self._committed(worked)
        trace.committed()

    def _work(
        self,
        steps: Collection[Step],
        waited: Collection[Step],
        now: datetime,
        begun: dict[Step, Batch],
        trace: BatchTrace,
    ) -> Sequence[tuple[Step, Work[Any]]]:
        """Let those steps work that have rows, due items in memory, or, for a follower, handed items."""
        handed: list[object] = []
        worked = []
        for step in self._steps:
            if handed if step.follows else (step in steps and (step in waited or _is_due(step))):
                begun[step] = Batch(self._limits[step], now, handed, nothing_before=self._marks.of(_name(step)))
                with trace.step(_name(step)):
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
                log.error("after_commit_failed", step=_name(step), error=type(error).__name__)  # noqa: TRY400

    # Between batches --------------------------------------------------------------------------------------------------

    def _look(self, now: datetime) -> None:
        """Read the time, whether this worker is the leader, and which steps have waiting rows, in one statement."""
        self._listen()
        self._look_at = monotonic() + LOOK_SECONDS
        if self._stopping.is_set():
            self._let_others_lead()
            return
        if monotonic() >= self._count_at:
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS
            own_share().count()
        self._marks.search(now=now)
        asked = [step for step in self._steps if step.takes_rows and (self._is_leader or not step.is_for_leader)]
        queries = "".join(
            f", {_query(step).replace('%(nothing_before)s', f'%(mark_{n})s')}" for n, step in enumerate(asked)
        )
        marks = {f"mark_{n}": self._marks.of(_name(step)) for n, step in enumerate(asked)}
        sql: LiteralString = f"SELECT clock_timestamp(), {'TRUE' if self._is_leader else TRY}{queries}"
        [(database_time, is_leader, *found)] = fetch(sql, {"key": BATCHES, "now": now, **marks})
        for step, waits, oldest in zip(asked, found[::2], found[1::2], strict=True):
            if waits or (oldest and not step.waits):
                self._with_rows.add(step)
            if step.oldest:
                self._marks.move(_name(step), oldest, now=now)
        clock.set(database_time)
        if database_time < now - OVERLAP / 2:
            self._marks.forget()
        if self._is_leader:
            self._marks.save()
        elif is_leader:
            self._is_leader = True
            write(f"LISTEN {CHANNEL}")
            self._look_at = 0.0  # for the leader's own steps, and rows from before this worker listened

    def _listen(self) -> None:
        connection.ensure_connection()
        if self._listening is not connection.connection:
            self._listening = connection.connection
            write(f"LISTEN {WAKE_PEERS}")
            [(now, *_)] = fetch(f"SELECT clock_timestamp(), {set_all(BATCH_WORKER)}")
            clock.set(now)
            own_share().show()
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS

    def _let_others_lead(self) -> None:
        """Let another worker become leader now, instead of when this connection closes."""
        if self._is_leader:
            self._is_leader = False
            LeaderLock(BATCHES).release()
            wake_peers()

    def _disconnect(self) -> None:
        """Close the connection. The next one has to listen, and to become leader, again."""
        connection.close()
        self._listening, self._is_leader = None, False
        self._look_at = 0.0
        self._marks.search_from_beginning()

    def _read_notifications(self) -> None:
        """Read the notifications: note the steps that they name, and look at once if one names no step."""
        payloads = {notice.payload for notice in self._listening.notifies(timeout=0)} if self._listening else set()
        self._with_rows |= {step for step in self._steps if step.announced_as in payloads - {""}}
        if "" in payloads:
            self._look_at = 0.0

    def _wait(self, not_before: float) -> None:
        """Sleep until rows are announced or items in memory are due, but at least until ``not_before``.

        A wakeup means that the memory of a step has changed. If its items are due later, the wait continues, because an
        empty batch would begin another pause.
        """
        sleep(max(not_before - monotonic(), 0.0))
        self._read_notifications()
        while not self._with_rows:
            next_at = self._next_at()
            seconds = (self._look_at if next_at is None else min(self._look_at, next_at)) - monotonic()
            if seconds <= 0:
                return
            files: list[Any] = [self._wakeup, *([self._listening] if self._listening else [])]
            readable, _, _ = select.select(files, [], [], seconds)
            if self._wakeup in readable:
                self._wakeup.clear()
            if self._listening in readable:
                self._read_notifications()
            if self._stopping.is_set():
                return

    def _next_at(self) -> float | None:
        """Return when the next items in memory are due, or None without such items."""
        return min((at for step in self._active() if (at := step.next_at()) is not None), default=None)


def _name(step: Step) -> str:
    return type(step).__name__


def _query(step: Step) -> LiteralString:
    """Return SQL expressions for whether rows wait for a step, and for the time of the earliest, as far as it asks."""
    waits: LiteralString = f"EXISTS ({step.waits})" if step.waits else "NULL"
    oldest: LiteralString = f"({step.oldest})" if step.oldest else "NULL"
    return f"{waits}, {oldest}"


def _is_due(step: Step) -> bool:
    at = step.next_at()
    return at is not None and at <= monotonic()
