"""Batches: a worker processes one after another of what waits in the database and in its memory.

    rows that wait ─────────┐                                      ┌──▶ POSTs, on the event loop of the process
                            ├──▶ step after step ──▶ one commit ───┤
    results of the POSTs ───┘                                      └──▶ what the process remembers
              ▲                                                                   │
              └────────────────────── the wakeup is set ◀─────────────────────────┘

Rows are the queue. A process that writes rows announces them on a channel of PostgreSQL in the same transaction. One
worker is the leader (an advisory lock says which) and hears that. When it finds more than fits into a batch it wakes
its peers, and each takes the rows that it can lock (`SKIP LOCKED`). So a message at night wakes one process, and under
load all of them work. Each looks for rows once a second in any case, so that a worker that hangs or died delays rows,
and stops nothing.
A row that was processed keeps its place in the index until a vacuum, and for as long as anybody keeps an old snapshot
open. So no statement reads what is older than the oldest row that waits. Each worker finds that out every 15 seconds,
from the last one on; and from the beginning on where it is told that an old row waits, or may not have heard that, and
in any case for one step after the other, so that no search is long.
A batch takes what has gathered since the last one. It never waits for a POST: a later batch takes the results, as it
takes rows. The steps of a batch work in their order, and each returns what it decided:

    work(batch) ──▶ Work ──┬── handed ──▶ the steps behind it, in the same transaction (`Batch.handed`)
                           └── decided ──▶ its own `committed`, which sends it; dropped when the commit fails

A batch that fails at one item is repeated step by step with half as many items, until that item is alone and its step
quarantines it. What the database refuses because of another worker is repeated. An item that another session keeps
locked is found in the same way, and put off.
"""

import os
import select
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any, Generic, LiteralString, Protocol, TypeVar

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
from kit.health.change_filter import ChangeFilter
from kit.processes.leader import BATCHES, HELD, TRY, LeaderLock
from kit.tracing import spans

log = structlog.get_logger(__name__)
T = TypeVar("T")

CHANNEL = "batches"
WAKE_PEERS = "batches_peers"
OLD = "old"  # is announced when something waits that may be older than all that did
# Items of one step in one batch.
LIMIT = 200
# A batch has some fixed cost. Under light load it waits so long after the last one began, and takes a few items more.
PAUSE_SECONDS = 0.02
# A wake-up is lost with a connection or a process: rows are looked for so often in any case.
POLL_SECONDS = 1.0
# Another worker may insert the same row at the same moment. It is committed by the time this one fails on it.
ATTEMPTS = 3
# A conflict that one item meets alone is waited out. A row that is still in its way after so many waits, some 20 s, is
# no other worker's: the item would stop all others for good.
WAITS = 12
# Whoever has just waited for a lock that another session keeps waits no longer than this for the next ones.
LOCK_TIMEOUT = "100ms"
WARY_SECONDS = 60
# How long a step works in parts, one after the other, while the others of the process wait.
PARTS_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 2.0
# Marks are so far behind at least, because transactions take time and clocks differ. The sum of this and of the time
# between two searches is what a statement reads of processed rows.
RECENT = timedelta(seconds=45)
OLDEST_EVERY_SECONDS = 15
# A transaction that commits rows older than this announces them as `OLD`: marks may have passed them.
OLD_AFTER_SECONDS = 11
# Within this time the rows of each step are searched from the beginning on, whatever was announced.
BEGINNING_EVERY_SECONDS = 600
# After a search from the beginning that took too long: it keeps a worker from its messages for `OLDEST_TIMEOUT`.
BEGINNING_AGAIN_SECONDS = 300
OLDEST_TIMEOUT = "2s"
# A worker that cannot find out when the oldest row came reads what came since then, until it can.
AT_FIRST = timedelta(minutes=10)
OLDEST_SHARE = 0.05  # of a worker's time, however often it is told that something old waits
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Batch:
    """What a step works on: how many items at most, and what the steps before it decided for it.

    In ``taken`` a step notes what it holds: it gets the same batch back when that has to be given up.
    """

    limit: int
    now: datetime
    handed: Sequence[object] = ()
    taken: Sequence[Any] = ()
    is_part: bool = False  # of one at which the step failed
    nothing_before: datetime = LONG_AGO  # no row that waits is older, by the time that `Stage.oldest` finds


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """What a step decided. More is left when it was more than the limit allowed."""

    decided: T
    handed: Sequence[object] = ()
    is_more_left: bool = False


class Step(Protocol):
    """One part of every batch. All methods are called by the thread that processes the batches."""

    # An SQL condition that finds rows which wait for this step, and which a process that ends leaves to others. It is
    # empty for a step that only works off what is in memory.
    waits: LiteralString
    # An SQL query for the earliest time of such rows, where both pass over what is earlier than `%(nothing_before)s`.
    oldest: LiteralString
    # Only the leader looks for its rows.
    is_for_leader: bool
    # What is announced when rows come for it; it then works without looking whether there are some.
    announced_as: str
    # It works off what other steps handed on, and nothing else.
    follows: bool

    def next_at(self) -> float | None:
        """Return when there is something in memory to work off (monotonic, 0.0 for at once), or None."""
        ...

    def is_under_way(self) -> bool:
        """Return whether a later batch will get something that only this process learns, so that it must not end before
        that.
        """
        ...

    def work(self, batch: Batch) -> Work[Any]:
        """Decide and write, in the batch's transaction, and return what was decided."""
        ...

    def committed(self, decided: Any) -> None:
        """Send what was decided, and forget what has been worked off."""
        ...

    def rolled_back(self, batch: Batch) -> None:
        """Take everything back to before `work`: nothing of this batch was written."""
        ...

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Give up the one item that `work` trips over, so that it does not stop the others."""
        ...

    def put_off(self, batch: Batch) -> bool:
        """Leave the one item whose row another session keeps locked, and return whether that can be done."""
        ...


class BaseStep:
    """Defaults of a step that has nothing in memory and nothing to undo."""

    waits: LiteralString = ""
    oldest: LiteralString = ""
    is_for_leader = False
    announced_as = ""
    follows = False

    def next_at(self) -> float | None:
        return None

    def is_under_way(self) -> bool:
        return False

    def committed(self, decided: Any) -> None:
        """Do nothing, unless a step says otherwise."""

    def rolled_back(self, batch: Batch) -> None:
        """Do nothing, unless a step says otherwise."""

    def quarantine(self, error: Exception, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        log.error("step_failed", step=type(self).__name__, error=type(error).__name__)

    def put_off(self, batch: Batch) -> bool:  # noqa: ARG002 - the signature of a step
        """Put nothing off, unless a step says otherwise."""
        return False


class Wakeup:
    """Wakes the thread that processes the batches, from any thread. Set twice before it is cleared, it wakes once."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def set(self) -> None:
        """Wake the thread, unless that has been done and was not cleared yet."""
        if not self._is_set:
            self._is_set = True
            os.eventfd_write(self._file, 1)

    def clear(self) -> None:
        """Make it ready to be set again. Called only when the file is readable, and before another batch."""
        os.eventfd_read(self._file)
        self._is_set = False

    def fileno(self) -> int:
        return self._file


def wake(payload: str = "") -> None:
    """Tell every worker that rows wait, or `OLD` ones: at the commit of this transaction, or at once without one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


def _announce_if_old(now: datetime) -> None:
    """Tell the leader when rows that a transaction wrote with this time may be older than the marks by now."""
    if clock.now() - now > timedelta(seconds=OLD_AFTER_SECONDS):
        wake(OLD)


class Worker:
    """Processes batches in the calling thread until `stop`."""

    def __init__(self, steps: Sequence[Step], wakeup: Wakeup) -> None:
        self._steps = steps
        self._wakeup = wakeup
        self._with_rows: set[int] = set()  # positions of the steps that rows wait for
        self._poll_at = self._count_at = 0.0
        self._wary_until = 0.0
        self._oldest_at = self._oldest_not_before = self._beginning_at = 0.0
        self._next_searched, self._next_search_at = 0, 0.0
        self._nothing_before: dict[Step, datetime] = {}
        self._waits: Counter[Step] = Counter()  # of steps whose one item met a conflict
        self._listening: psycopg.Connection | None = None
        self._is_leader = False
        self._stopping = threading.Event()
        self._stop_at = float("inf")

    def run(self) -> None:
        """Process batches until `stop`. A database that is away is waited for, and why is told whenever it changes."""
        backoff, change_filter = Backoff(MAX_BACKOFF_SECONDS), ChangeFilter()
        while not self._is_over():
            started = monotonic()
            try:
                self._listen()
                if self.process_batch(now=clock.now()):
                    self._hear()  # what came meanwhile does not wait for what is left
                else:
                    self._wait(started + PAUSE_SECONDS)
                if backoff.failures:
                    backoff.reset()
                    change_filter = ChangeFilter()
                    log.info("batches_go_on")
            except (Error, psycopg.Error) as error:
                if change_filter.has_changed(why := reason(error)):
                    log.warning("batch_postponed", error=type(error).__name__, reason=why)
                self._hang_up()
                sleep(backoff.next())
        connection.close()

    def stop(self, *, timeout_seconds: float) -> None:
        """Take no more rows, and end once nothing is under way, or after the timeout."""
        self._stop_at = monotonic() + timeout_seconds
        self._stopping.set()
        self._wakeup.set()

    def _is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        return monotonic() >= self._stop_at or not any(step.is_under_way() for step in self._steps)

    def _hang_up(self) -> None:
        """Begin with a new connection, which does not listen yet."""
        connection.close()
        self._listening, self._is_leader = None, False
        self._poll_at = 0.0
        self._begin_anew()

    def process_batch(self, *, now: datetime) -> bool:
        """Process one batch; return whether there is more to do at once."""
        if monotonic() >= self._poll_at:
            self._poll(now)
        for _ in range(ATTEMPTS):
            try:
                return self._work_together(now)
            except Exception as error:
                if is_unavailable(error):
                    raise
                if is_lock_timeout(error) and monotonic() >= self._wary_until:  # it has waited for the whole second
                    self._wary_until = monotonic() + WARY_SECONDS
                if not is_conflict(error):
                    log.warning("batch_split", error=type(error).__name__, sqlstate=sqlstate(error))
                    break
                log.info("batch_collided", error=type(error).__name__)
        self._work_apart(now)
        return True

    def _poll(self, now: datetime) -> None:
        """Ask what time it is, whether we are the leader, and which steps rows wait for, all in one statement."""
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
        if database_time < now - RECENT / 2:  # the clock was put back: rows are older from now on than what is known
            self._nothing_before = {}
            self._begin_anew()
        self._with_rows |= {index for index, is_so in zip(waiting, found, strict=True) if is_so}
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            write(f"LISTEN {CHANNEL}" if is_leader else f"UNLISTEN {CHANNEL}")
            self._poll_at = 0.0  # also for the steps of one worker, and for what came before we listened
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Look for the oldest from the beginning on: that something old waits may have been told to nobody."""
        self._beginning_at = self._oldest_at = 0.0

    def _find_oldest(self, now: datetime) -> None:
        """Find out since when the oldest row of each step waits. What is known stays when that takes too long."""
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
        """Return the step whose rows are now searched from the beginning on, or none: each is in its time."""
        if not steps or monotonic() < self._next_search_at:
            return ()
        self._next_search_at = monotonic() + BEGINNING_EVERY_SECONDS / len(steps)
        self._next_searched += 1
        return [steps[self._next_searched % len(steps)]]

    def _ask_for_oldest(self, begin: Mapping[Step, datetime], now: datetime) -> Sequence[datetime | None]:
        """Return the times of the oldest rows from these times on, or nothing when PostgreSQL reads for too long."""
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
        """Let another worker be the leader at once, not only when this connection is closed."""
        if self._is_leader:
            self._is_leader = False
            write(f"UNLISTEN {CHANNEL}")
            LeaderLock(BATCHES).release()
            write(f"NOTIFY {WAKE_PEERS}")

    def _hear(self) -> None:
        """Note for which steps rows were announced; look at once when that was not said."""
        payloads = {notice.payload for notice in self._listening.notifies(timeout=0)} if self._listening else set()
        announced = {index for index, step in enumerate(self._steps) if step.announced_as in payloads - {"", OLD}}
        self._with_rows |= announced
        if payloads & {"", OLD}:
            self._poll_at = 0.0
        if OLD in payloads:
            self._beginning_at = 0.0
            self._oldest_at = min(self._oldest_at, self._oldest_not_before)

    def _work_together(self, now: datetime) -> bool:
        """Let all steps work in one transaction, which is the usual way."""
        waited, self._with_rows = self._with_rows, set()  # what is announced from now on is for the next batch
        made = _Run(LIMIT, now, self._nothing_before)
        left: set[int] = set()
        try:
            with transaction.atomic(durable=True):
                if monotonic() < self._wary_until:
                    write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                for index, step in self._active():
                    if made.concerns(step, has_rows=index in waited) and made.let_work(step):
                        left.add(index)
                left = set() if self._stopping.is_set() else left
                if left and self._is_leader:
                    write(f"NOTIFY {WAKE_PEERS}")
                _announce_if_old(now)
        except BaseException:
            self._with_rows |= waited
            made.undo()
            raise
        made.log_step_failures()
        self._waits.clear()
        self._with_rows |= left
        return bool(self._with_rows)

    def _active(self) -> Iterator[tuple[int, Step]]:
        """Yield the steps with their positions. In a process that ends, only those that take no rows are left."""
        for index, step in enumerate(self._steps):
            if not (step.waits and self._stopping.is_set()):
                yield index, step

    def _work_apart(self, now: datetime) -> None:
        """Give each step transactions of its own. A conflict or lock that is waited out is raised once the others have
        worked.
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
        """Let a step work on fewer and fewer items while it trips. Where locks are in its way, go on behind what was
        put off, as the next batch would only wait for the next lock.
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
        """Let one step work, and those that follow it; return whether more is left for it."""
        with transaction.atomic(durable=True):
            write(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            is_more_left = made.let_work(step)
            for follower in self._steps:
                if follower.follows and made.concerns(follower):
                    made.let_work(follower)
            _announce_if_old(now)
        made.log_step_failures()
        return is_more_left

    def _give_up(self, step: Step, error: Exception, batch: Batch) -> None:
        """Put the one item off, or set it aside. Raise the error of another session, which is waited out."""
        if is_lock_timeout(error) and step.put_off(batch):
            return
        if self._is_waited_out(step, error):
            raise error
        with transaction.atomic(durable=True):
            step.quarantine(error, batch)

    def _is_waited_out(self, step: Step, error: Exception) -> bool:
        """Return whether an error that one item met alone is the fault of another session."""
        if is_collision(error) or is_lock_timeout(error):
            return True
        self._waits[step] += is_conflict(error)
        return is_conflict(error) and self._waits[step] <= WAITS

    def _wait(self, not_before: float) -> None:
        """Sleep until rows are announced or something is due, but never less than the pause.

        The wakeup says that the memory of a step has changed. That may be due later only: a batch without
        anything to do would begin another pause.
        """
        sleep(max(not_before - monotonic(), 0.0))
        self._hear()
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
                self._hear()
            if self._stopping.is_set():
                return

    def _next_at(self) -> float | None:
        """Return when the memory of some step wants a batch."""
        return min((at for _, step in self._active() if (at := step.next_at()) is not None), default=None)


class _Run:
    """What the steps of one batch were given, and what they decided."""

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
        """Return whether a step has something to do; an earlier one may have given it work."""
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
        """Return what a step was given that has begun."""
        return next(batch for begun, batch in self._begun if begun is step)

    def half_of(self, step: Step) -> int:
        """Return half of what a step took, as far as it says that, but not less than one item."""
        return max(min(self._limit, len(self.batch_of(step).taken) or self._limit) // 2, 1)

    def undo(self) -> None:
        """Have every step that has begun take everything back."""
        for step, batch in self._begun:
            step.rolled_back(batch)

    def log_step_failures(self) -> None:
        """Have the steps send what they decided. It is written, so no error of one may keep another from it."""
        for step, work in self._worked:
            try:
                step.committed(work.decided)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other steps go on
                log.error("after_commit_failed", step=type(step).__name__, error=type(error).__name__)  # noqa: TRY400
        self._traced.committed()


def _numbered(waits: LiteralString, index: int) -> LiteralString:
    """Return the condition with a parameter of its own, beside those of other steps."""
    return waits.replace("%(nothing_before)s", f"%(nothing_before_{index})s")


def _is_due(step: Step) -> bool:
    at = step.next_at()
    return at is not None and at <= monotonic()
