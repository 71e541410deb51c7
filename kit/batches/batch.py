"""Batches: a worker processes waiting rows of the database, and results in its memory, one batch after another.

    rows that wait ─────────┐                                      ┌──▶ POSTs, on the event loop of the process
                            ├──▶ step after step ──▶ one commit ───┤
    results of the POSTs ───┘                                      └──▶ what the process remembers
              ▲                                                                   │
              └────────────────────── the wakeup is set ◀─────────────────────────┘

Rows are the queue. A process that writes rows sends a NOTIFY on a channel of PostgreSQL in the same transaction. Only
one worker, the leader, listens on that channel; it holds an advisory lock. When the leader finds more rows than fit
into a batch, it wakes its peers, and each takes the rows that it can lock (`SKIP LOCKED`). So a message at night wakes
one process, and under load all workers process batches. Each worker also looks for rows once a second. So a worker that
hangs or died delays rows by a second and stops nothing.

A processed row keeps its index entry until a vacuum, and as long as an old snapshot is open. To skip those entries,
statements read no rows older than the oldest row that waits. Each worker searches for that row every 15 seconds, and
begins at the last one that it found. It searches from the beginning of the index when an old row was announced, or when
it may have missed such an announcement. In turn, it also searches the rows of one step after another from there, so
that no single search is long.

A batch takes the rows that have arrived since the last batch. It never waits for a POST: a later batch takes the
results. The steps of a batch work in their order, and each returns what it decided:

    work(batch) ──▶ Work ──┬── handed ──▶ the later steps, in the same transaction (`Batch.handed`)
                           └── decided ──▶ the step's own `committed`, which sends it; dropped if the commit fails

A batch that fails because of one item is repeated step by step, each time with half as many items. When that item is
alone, its step quarantines it. An item that another session keeps locked is isolated in the same way and put off. A
batch that collided with another worker is repeated as it was.
"""

import os
import select
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any, Generic, LiteralString, TypeVar

import psycopg
import structlog
from django.db import Error, connection, transaction

from kit.backoff import Backoff
from kit.batches import marks
from kit.buckets.share import COUNTED_EVERY_SECONDS, own_share
from kit.db.clock import clock
from kit.db.postgresql.sessions import BATCH_WORKER, set_all
from kit.db.reasons import (
    STATEMENT_TIMEOUT,
    is_collision,
    is_conflict,
    is_lock_timeout,
    is_unavailable,
    reason,
    sqlstate,
)
from kit.db.statements import fetch, write
from kit.processes import own_faults
from kit.processes.leader import BATCHES, HELD, TRY, LeaderLock
from kit.processes.status import ChangeFilter
from kit.tracing import spans

log = structlog.get_logger(__name__)
T = TypeVar("T")

CHANNEL = "batches"
WAKE_PEERS = "batches_peers"
OLD = "old"  # payload of a NOTIFY: a row waits that may be older than all rows that waited before
# Items of one step in one batch.
LIMIT = 200
# A batch has a fixed cost. Under light load, it begins this long after the last one, and then takes a few more items.
PAUSE_SECONDS = 0.02
# Workers look for rows this often, because a NOTIFY is lost with its connection or its listener.
POLL_SECONDS = 1.0
# Another worker may insert the same row at the same moment. The row is committed by the time this worker fails on it.
ATTEMPTS = 3
# How often, over some 20 s, an item that meets a conflict alone is tried again. After that, no other worker causes the
# conflict, and the item would block all others for ever.
WAITS = 12
# For `SHORT_WAITS_SECONDS` after a batch has waited in vain for a lock, batches wait only this long for each lock.
LOCK_TIMEOUT = "100ms"
SHORT_WAITS_SECONDS = 60
# How long one step may work in parts while the other steps of the process wait.
PARTS_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 2.0
# Marks are at least this old, because transactions take time and clocks differ. This time plus the time between two
# searches is the range of processed rows that a statement reads.
RECENT = timedelta(seconds=45)
OLDEST_EVERY_SECONDS = 15
# A transaction that commits rows older than this announces them as `OLD`, because marks may have passed them.
OLD_AFTER_SECONDS = 11
# Within this time the rows of every step are searched once from the beginning of the index.
BEGINNING_EVERY_SECONDS = 600
# Seconds until the next search from the beginning after one that timed out and so kept the worker from its batches.
BEGINNING_AGAIN_SECONDS = 300
OLDEST_TIMEOUT = "2s"
# A worker that has not found the oldest row yet reads the rows of this time.
AT_FIRST = timedelta(minutes=10)
OLDEST_SHARE = 0.05  # largest share of a worker's time for these searches, however many rows are announced as `OLD`
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Batch:
    """The input of one step: at most ``limit`` items, and what earlier steps ``handed`` to it.

    In ``taken`` the step records the items that it holds. After a rollback it gets the same batch object back.
    """

    limit: int
    now: datetime
    handed: Sequence[object] = ()
    taken: Sequence[Any] = ()
    is_part: bool = False  # one of the parts into which a failed batch was split
    nothing_before: datetime = LONG_AGO  # no waiting row is older, by the time that `Step.oldest` selects


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """The result of one step. ``is_more_left`` says that items were left because of the limit."""

    decided: T
    handed: Sequence[object] = ()
    is_more_left: bool = False


class Step:
    """One part of every batch. The worker calls all methods but `cut_off` in the thread that processes the batches.

    The defaults are for steps that keep nothing in memory and have nothing to undo.
    """

    # An SQL query for rows that wait for this step. A process that ends leaves them to other processes. It is empty for
    # a step whose items are all in memory.
    waits: LiteralString = ""
    # An SQL query for the earliest time of those rows. Both queries skip rows from before `%(nothing_before)s`.
    oldest: LiteralString = ""
    # Only the leader looks for rows of this step.
    is_for_leader = False
    # The payload of the NOTIFY that announces rows for this step. The step then works without a query for them.
    announced_as = ""
    # The step processes only what earlier steps have handed to it.
    follows = False

    def next_at(self) -> float | None:
        """Return when items in memory are due (monotonic, 0.0 for now), or None without such items."""
        return None

    def is_under_way(self) -> bool:
        """Return whether this process still expects results that no other process can record.

        A process that is to stop waits for them.
        """
        return False

    def work(self, batch: Batch) -> Work[Any]:
        """Decide and write, in the batch's transaction, and return the decisions."""
        raise NotImplementedError

    def committed(self, decided: Any) -> None:
        """Send what was decided, and remove the processed items from memory."""

    def rolled_back(self, batch: Batch) -> None:
        """Restore the memory of the step to its state before `work`, because the transaction was rolled back."""

    def cut_off(self) -> None:
        """Take back what says that the process died of the items of its batch, because it is ended in the middle of
        one for another reason.
        """

    def quarantine(self, error: Exception, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        """Quarantine the one item of the batch, which makes `work` fail, so that it does not block the others."""
        log.error("step_failed", step=type(self).__name__, error=type(error).__name__)

    def put_off(self, batch: Batch) -> bool:  # noqa: ARG002 - the signature of a step
        """Leave the one item of the batch, whose row another session has locked. Return whether the step can do so."""
        return False


class Wakeup:
    """An event that wakes the thread which processes the batches. Any thread may set it; `select` can wait for it."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def set(self) -> None:
        """Wake the thread, unless the event is set already."""
        if not self._is_set:
            self._is_set = True
            os.eventfd_write(self._file, 1)

    def clear(self) -> None:
        """Reset the event. Call it only when the file is readable, and before the next batch."""
        os.eventfd_read(self._file)
        self._is_set = False

    def fileno(self) -> int:
        return self._file


def wake(payload: str = "") -> None:
    """Notify the leader that rows wait: at the commit of this transaction, or at once outside of one.

    ``payload`` is the `Step.announced_as` of their step, `OLD`, or empty for rows of any step.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


def wake_peers() -> None:
    """Notify every worker that rows wait: those that this process found, but cannot process itself."""
    write(f"NOTIFY {WAKE_PEERS}")


def _announce_if_old(now: datetime) -> None:
    """Notify the leader if the rows that a transaction wrote with the time ``now`` may be older than the marks."""
    if clock.now() - now > timedelta(seconds=OLD_AFTER_SECONDS):
        wake(OLD)


class Worker:
    """Processes batches in the calling thread until `stop`."""

    def __init__(self, steps: Sequence[Step], wakeup: Wakeup) -> None:
        self._steps = steps
        self._wakeup = wakeup
        self._with_rows: set[int] = set()  # indexes of the steps that have waiting rows
        self._poll_at = self._count_at = 0.0
        self._short_waits_until = 0.0
        self._oldest_at = self._oldest_not_before = self._beginning_at = 0.0
        self._next_searched, self._next_search_at = 0, 0.0
        self._nothing_before: dict[Step, datetime] = {}
        self._waits: Counter[Step] = Counter()  # by step, how often its single item has met a conflict
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
                own_faults.note_refusal(sqlstate(error))
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
        if not self._stopping.is_set():
            return False
        return monotonic() >= self._stop_at or not any(step.is_under_way() for step in self._steps)

    def _disconnect(self) -> None:
        """Close the connection. The next one has to listen, and to become leader, again."""
        connection.close()
        self._listening, self._is_leader = None, False
        self._poll_at = 0.0
        self._search_from_beginning()

    def process_batch(self, *, now: datetime) -> bool:
        """Process one batch, and return whether rows are left for the next one."""
        if monotonic() >= self._poll_at:
            self._poll(now)
        for _ in range(ATTEMPTS):
            try:
                return self._work_together(now)
            except Exception as error:
                if is_unavailable(error):
                    raise
                if (
                    is_lock_timeout(error) and monotonic() >= self._short_waits_until
                ):  # it has waited the whole `lock_timeout`
                    self._short_waits_until = monotonic() + SHORT_WAITS_SECONDS
                if not is_conflict(error):
                    log.warning("batch_split", error=type(error).__name__, sqlstate=sqlstate(error))
                    break
                log.info("batch_collided", error=type(error).__name__)
        self._work_apart(now)
        return True

    def _poll(self, now: datetime) -> None:
        """Read the time, whether this worker is the leader, and which steps have waiting rows, in one statement."""
        self._listen()
        self._poll_at = monotonic() + POLL_SECONDS
        if self._stopping.is_set():
            self._hand_over()
            return
        if monotonic() >= self._count_at:
            own_share().count()
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS
        if monotonic() >= self._oldest_at:
            self._find_oldest(now)
        asked = [(n, step) for n, step in enumerate(self._steps) if self._is_leader or not step.is_for_leader]
        waiting = [index for index, step in asked if step.waits]
        conditions = "".join(f", EXISTS ({_numbered(self._steps[index].waits, index)})" for index in waiting)
        sql: LiteralString = f"SELECT clock_timestamp(), {HELD if self._is_leader else TRY}{conditions}"
        times = {f"nothing_before_{index}": self._nothing_before.get(step, LONG_AGO) for index, step in asked}
        [(database_time, is_leader, *found)] = fetch(sql, {"key": BATCHES, "now": now, **times})
        clock.set(database_time)
        if database_time < now - RECENT / 2:  # the clock was set back: new rows are older than the known marks
            self._nothing_before = {}
            self._search_from_beginning()
        self._with_rows |= {index for index, is_so in zip(waiting, found, strict=True) if is_so}
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            write(f"LISTEN {CHANNEL}" if is_leader else f"UNLISTEN {CHANNEL}")
            self._poll_at = 0.0  # to include the leader's own steps, and rows from before this worker listened
            self._search_from_beginning()

    def _search_from_beginning(self) -> None:
        """Schedule a search from the beginning of the index, because an announcement of old rows may be lost."""
        self._beginning_at = self._oldest_at = 0.0

    def _find_oldest(self, now: datetime) -> None:
        """Find the time of the oldest waiting row of each step. After a timeout the known times stay."""
        asked_at, recent = monotonic(), now - RECENT
        steps = [step for step in self._steps if step.oldest]
        known = dict.fromkeys(steps, recent - AT_FIRST) | self._nothing_before
        is_from_beginning = asked_at >= self._beginning_at
        searched = steps if is_from_beginning else self._due_for_search(steps)
        found = self._ask_for_oldest(known | dict.fromkeys(searched, LONG_AGO), now)
        if is_from_beginning:
            self._beginning_at = float("inf") if found else monotonic() + BEGINNING_AGAIN_SECONDS
        if searched and not found:
            self._nothing_before = known
            found = self._ask_for_oldest(known, now)
        if found:
            self._nothing_before = {s: min(oldest or recent, recent) for s, oldest in zip(steps, found, strict=True)}
            if self._is_leader:
                marks.save({type(step).__name__: at for step, at in self._nothing_before.items()})
        self._oldest_not_before = monotonic() + (monotonic() - asked_at) / OLDEST_SHARE
        self._oldest_at = max(asked_at + OLDEST_EVERY_SECONDS, self._oldest_not_before)

    def _due_for_search(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the step whose rows are to be searched from the beginning now, or none. The steps take turns."""
        if not steps or monotonic() < self._next_search_at:
            return ()
        self._next_search_at = monotonic() + BEGINNING_EVERY_SECONDS / len(steps)
        self._next_searched += 1
        return [steps[self._next_searched % len(steps)]]

    def _ask_for_oldest(self, begin: Mapping[Step, datetime], now: datetime) -> Sequence[datetime | None]:
        """Return by step the time of the oldest row that is not before ``begin``, or nothing after a timeout."""
        if not begin:
            return ()
        times = {f"nothing_before_{index}": time for index, time in enumerate(begin.values())}
        columns = ", ".join(f"({_numbered(step.oldest, index)})" for index, step in enumerate(begin))
        write(f"SET statement_timeout = '{OLDEST_TIMEOUT}'")
        try:
            [found] = fetch(f"SELECT {columns}", {"now": now, **times})
        except Error as error:
            if sqlstate(error) != STATEMENT_TIMEOUT:
                raise
            log.warning("oldest_not_found", reason=reason(error))
            found = ()
        write("RESET statement_timeout")
        return found

    def _listen(self) -> None:
        connection.ensure_connection()
        if self._listening is not connection.connection:
            self._listening = connection.connection
            write(f"LISTEN {WAKE_PEERS}")
            [(now, *_)] = fetch(f"SELECT clock_timestamp(), {set_all(BATCH_WORKER)}")
            clock.set(now)
            own_share().show()

    def _hand_over(self) -> None:
        """Let another worker become leader now, instead of when this connection closes."""
        if self._is_leader:
            self._is_leader = False
            write(f"UNLISTEN {CHANNEL}")
            LeaderLock(BATCHES).release()
            wake_peers()

    def _read_notifications(self) -> None:
        """Read the notifications: note the steps that they name, and poll at once if one names no step."""
        payloads = {notice.payload for notice in self._listening.notifies(timeout=0)} if self._listening else set()
        announced = {index for index, step in enumerate(self._steps) if step.announced_as in payloads - {"", OLD}}
        self._with_rows |= announced
        if payloads & {"", OLD}:
            self._poll_at = 0.0
        if OLD in payloads:
            self._beginning_at = 0.0
            self._oldest_at = min(self._oldest_at, self._oldest_not_before)

    def _work_together(self, now: datetime) -> bool:
        """Let all steps work in one transaction, as usual. Return whether rows are left."""
        waited, self._with_rows = self._with_rows, set()  # rows announced from now on are for the next batch
        made = _Run(LIMIT, now, self._nothing_before)
        left: set[int] = set()
        try:
            with transaction.atomic(durable=True):
                if monotonic() < self._short_waits_until:
                    write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                for index, step in self._active():
                    if made.concerns(step, has_rows=index in waited) and made.let_work(step):
                        left.add(index)
                left = set() if self._stopping.is_set() else left
                if left and self._is_leader:
                    wake_peers()
                _announce_if_old(now)
        except BaseException:
            self._with_rows |= waited
            made.undo()
            raise
        made.committed()
        self._waits.clear()
        self._with_rows |= left
        return bool(self._with_rows)

    def _active(self) -> Iterator[tuple[int, Step]]:
        """Yield the steps with their indexes. A process that is to stop skips the steps that take rows."""
        for index, step in enumerate(self._steps):
            if not (step.waits and self._stopping.is_set()):
                yield index, step

    def _work_apart(self, now: datetime) -> None:
        """Let each step work in transactions of its own. The error of a step that has to wait for another session is
        raised after all steps have worked.
        """
        waited, self._with_rows = self._with_rows, set()
        met: Exception | None = None
        for index, step in self._active():
            if not step.follows and (index in waited or _is_due(step)):
                try:
                    self._work_in_parts(step, now)
                except Exception as error:
                    if not (is_conflict(error) or is_lock_timeout(error)):
                        raise
                    met = error
        if met:
            raise met

    def _work_in_parts(self, step: Step, now: datetime) -> None:
        """Let a step work, with half as many items after each failure.

        After a lock timeout, continue with the items behind the one that was put off, for up to `PARTS_SECONDS`. The
        next batch would otherwise wait for the next locked row.
        """
        part, is_held_up, until = LIMIT, False, monotonic() + PARTS_SECONDS
        is_more_left = True
        while is_more_left:
            made = _Run(part, now, self._nothing_before, is_part=True)
            try:
                is_more_left = self._work_alone(step, made, now)
            except Exception as error:
                made.undo()
                if is_unavailable(error):
                    raise
                is_held_up = is_held_up or is_lock_timeout(error)
                if part > 1:
                    part = made.half_of(step)
                    continue
                self._give_up(step, error, made.batch_of(step))
            del self._waits[step]
            if not is_held_up or monotonic() > until:
                return
            part = min(2 * part, LIMIT)

    def _work_alone(self, step: Step, made: "_Run", now: datetime) -> bool:
        """Let one step and its followers work in one transaction. Return whether more is left for the step."""
        with transaction.atomic(durable=True):
            write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            is_more_left = made.let_work(step)
            for follower in self._steps:
                if follower.follows and made.concerns(follower):
                    made.let_work(follower)
            _announce_if_old(now)
        made.committed()
        return is_more_left

    def _give_up(self, step: Step, error: Exception, batch: Batch) -> None:
        """Put the one item off, or quarantine it. Raise an error that another session causes, so that it is retried."""
        if is_lock_timeout(error) and step.put_off(batch):
            return
        if self._is_retried(step, error):
            raise error
        with transaction.atomic(durable=True):
            step.quarantine(error, batch)

    def _is_retried(self, step: Step, error: Exception) -> bool:
        """Return whether another session causes the error of a single item, so that a later attempt can succeed."""
        if is_collision(error) or is_lock_timeout(error):
            return True
        self._waits[step] += is_conflict(error)
        return is_conflict(error) and self._waits[step] <= WAITS

    def _wait(self, not_before: float) -> None:
        """Sleep until rows are announced or items in memory are due, but at least until ``not_before``.

        A wakeup means that the memory of a step has changed. If its items are due later, the wait continues, because an
        empty batch would begin another pause.
        """
        sleep(max(not_before - monotonic(), 0.0))
        self._read_notifications()
        while not self._with_rows:
            next_at = self._next_at()
            seconds = (self._poll_at if next_at is None else min(self._poll_at, next_at)) - monotonic()
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
        return min((at for _, step in self._active() if (at := step.next_at()) is not None), default=None)


class _Run:
    """One run over the steps of a batch: the input of each step, and its result."""

    def __init__(
        self, limit: int, now: datetime, nothing_before: Mapping[Step, datetime], *, is_part: bool = False
    ) -> None:
        self._limit = limit
        self._now = now
        self._nothing_before = nothing_before
        self._is_part = is_part
        self._handed: list[object] = []
        self._begun: list[tuple[Step, Batch]] = []
        self._worked: list[tuple[Step, Work[Any]]] = []
        self._traced = spans.begin_batch()

    def concerns(self, step: Step, *, has_rows: bool = False) -> bool:
        """Return whether a step has items: waiting rows, due items in memory, or, for a follower, handed items."""
        return bool(self._handed) if step.follows else has_rows or _is_due(step)

    def let_work(self, step: Step) -> bool:
        """Let a step work, and return whether more is left for it."""
        nothing_before = self._nothing_before.get(step, LONG_AGO)
        batch = Batch(self._limit, self._now, self._handed, is_part=self._is_part, nothing_before=nothing_before)
        self._begun.append((step, batch))
        with self._traced.step(type(step).__name__):
            work = step.work(batch)
        self._worked.append((step, work))
        self._handed += work.handed
        return work.is_more_left

    def batch_of(self, step: Step) -> Batch:
        """Return the input of a step that has begun."""
        return next(batch for begun, batch in self._begun if begun is step)

    def half_of(self, step: Step) -> int:
        """Return half of the number of items that a step took, or of the limit if it recorded none, but at least 1."""
        return max(min(self._limit, len(self.batch_of(step).taken) or self._limit) // 2, 1)

    def undo(self) -> None:
        """Roll back every step that has begun."""
        for step, batch in self._begun:
            step.rolled_back(batch)

    def committed(self) -> None:
        """Call `committed` of each step. Everything is committed, so an error of one step must not stop the others."""
        for step, work in self._worked:
            try:
                step.committed(work.decided)
            except Exception as error:  # noqa: BLE001 - the other steps go on after any error
                log.error("after_commit_failed", step=type(step).__name__, error=type(error).__name__)  # noqa: TRY400
        self._traced.committed()


def _numbered(waits: LiteralString, index: int) -> LiteralString:
    """Return the query of a step with a name of its own for its parameter `nothing_before`."""
    return waits.replace("%(nothing_before)s", f"%(nothing_before_{index})s")


def _is_due(step: Step) -> bool:
    at = step.next_at()
    return at is not None and at <= monotonic()
