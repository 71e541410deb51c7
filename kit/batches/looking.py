"""Waiting rows: one worker is notified of them by PostgreSQL, and every worker looks for them once a second.

A process that writes rows sends a NOTIFY in the same transaction. Only one worker, the leader, listens to it; it holds
an advisory lock. When the leader finds more rows than fit into a batch, it wakes its peers, and each takes the rows
that it can lock (`SKIP LOCKED`). So a message at night wakes one process, and under load all workers process batches. A
NOTIFY is lost with its connection or its listener, so each worker also looks by itself. A worker that hangs or died
delays rows by a second and stops nothing.

A look begins at the low-water mark of each step: no row that waits for the step is older. A processed row keeps its
index entry until a vacuum, and as long as an old snapshot is open, and with a mark no look reads such entries. Each
look moves the marks to a minute before the earliest row that it finds. A due time is never set before now, so later
rows are newer. A worker searches from the beginning when it connects, after a clock was set back, and every ten
minutes. The leader saves its marks for statements of other processes (`since`).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from time import monotonic
from typing import LiteralString

import psycopg
import structlog
from django.db import Error, connection

from kit.batches.batch import CHANNEL, LONG_AGO, WAKE_PEERS, Step, wake_peers
from kit.buckets.shared import COUNTED_EVERY_SECONDS, own_share
from kit.db.base import fetch, write
from kit.db.clock import clock
from kit.db.reasons import STATEMENT_TIMEOUT, reason, sqlstate
from kit.db.sessions import BATCH_WORKER, set_all
from kit.processes.leader import BATCHES, TRY, LeaderLock

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
# A mark is at least this old, because transactions take time and clocks differ. So old are the processed rows that a
# look reads at most.
OVERLAP = timedelta(minutes=1)
COMPLETE_EVERY_SECONDS = 600
SAVED_EVERY_SECONDS = 15
TIMEOUT, SLOW_SECONDS = "2s", 0.5  # of one search from the beginning
# A worker whose first search from the beginning takes too long reads the rows of this time.
AT_FIRST = timedelta(minutes=10)

_SAVE: LiteralString = """
    INSERT INTO batches_stepmark (step, nothing_before)
    SELECT * FROM unnest(%(steps)s::text[], %(times)s::timestamptz[])
    ON CONFLICT (step) DO UPDATE SET nothing_before = excluded.nothing_before
"""


def since(step: LiteralString) -> LiteralString:
    """Return the saved mark of a step as an SQL expression."""
    return f"(SELECT coalesce(max(nothing_before), '-infinity') FROM batches_stepmark WHERE step = '{step}')"


class WaitingRows:
    """What one worker knows of the rows that wait, by its session: ``steps`` are those that have some."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps: set[Step] = set()
        self.look_at = 0.0  # when the next look is due
        self.is_leader = False
        self.session: psycopg.Connection | None = None
        self._all = [step for step in steps if step.takes_rows]
        self._marks: dict[Step, datetime] = {}
        self._complete_at: dict[Step, float] = {}  # when a search from the beginning is due; at once if missing
        self._save_at = self._count_at = 0.0  # when the marks are saved, and the live workers are counted

    def connect(self) -> None:
        """Prepare a session, unless there is one: it listens, has the settings of a worker, and shows a live one."""
        connection.ensure_connection()
        if self.session is not connection.connection:
            self.session = connection.connection
            write(f"LISTEN {WAKE_PEERS}")
            [(now, *_)] = fetch(f"SELECT clock_timestamp(), {set_all(BATCH_WORKER)}")
            clock.set(now)
            own_share().show()
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS

    def disconnect(self) -> None:
        """Close the session. The next one has to listen, and to become leader, again."""
        connection.close()
        self.session, self.is_leader = None, False
        self.look_at = 0.0
        self.search_from_beginning()

    def read_notifications(self) -> None:
        """Read the notifications: note the steps that they name, and look at once if one names no step of ours.

        Another release may have other names.
        """
        payloads = {notice.payload for notice in self.session.notifies(timeout=0)} if self.session else set()
        self.steps |= {step for step in self._all if type(step).__name__ in payloads}
        if payloads - {type(step).__name__ for step in self._all}:
            self.look_at = 0.0

    def look(self, *, now: datetime, is_stopping: bool = False) -> None:
        """Read the time, whether this worker is the leader, and which steps have waiting rows, in one statement.

        A process that is to stop takes no rows, and lets another one lead.
        """
        self.connect()
        self.look_at = monotonic() + LOOK_SECONDS
        if is_stopping:
            if self.is_leader:
                self.is_leader = False
                LeaderLock(BATCHES).release()
                wake_peers()
            return
        if monotonic() >= self._count_at:
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS
            own_share().count()
        self._search_completely(now)
        asked = [step for step in self._all if self.is_leader or not step.is_for_leader]
        queries = [query_of(step).replace("%(nothing_before)s", f"%(mark_{n})s") for n, step in enumerate(asked)]
        sql = ", ".join(["SELECT clock_timestamp()", "TRUE" if self.is_leader else TRY, *queries])
        marks = {f"mark_{n}": self.mark(step) for n, step in enumerate(asked)}
        [(database_time, is_leader, *found)] = fetch(sql, {"key": BATCHES, "now": now, **marks})
        for step, waits, earliest in zip(asked, found[::2], found[1::2], strict=True):
            self.steps |= {step} if waits or (earliest and not step.waits) else set()
            self._move(step, earliest, now)
        clock.set(database_time)
        if database_time < now - OVERLAP / 2:  # the clock was set back, and new rows are older than the marks
            self._marks = {}
            self.search_from_beginning()
        self._lead(may_lead=is_leader)

    def _lead(self, *, may_lead: bool) -> None:
        if self.is_leader and self._marks and monotonic() >= self._save_at:
            names = [type(step).__name__ for step in self._marks]
            write(_SAVE, {"steps": names, "times": list(self._marks.values())})
            self._save_at = monotonic() + SAVED_EVERY_SECONDS
        if may_lead and not self.is_leader:
            self.is_leader = True
            write(f"LISTEN {CHANNEL}")
            self.look_at = 0.0  # for the leader's own steps, and rows from before this worker listened

    def mark(self, step: Step) -> datetime:
        """Return a time before which no row waits for the step."""
        return self._marks.get(step, LONG_AGO)

    def search_from_beginning(self) -> None:
        """Have the next look search from the beginning, because rows may wait that are older than the marks."""
        self._complete_at = {}

    def _search_completely(self, now: datetime) -> None:
        """Search from the beginning where that is due. After a slow search, the other steps wait for the next look."""
        began, timed = monotonic(), [step for step in self._all if step.oldest]
        due = [step for step in timed if began >= self._complete_at.get(step, 0.0)]
        if not due:
            return
        self._marks = dict.fromkeys(timed, now - AT_FIRST) | self._marks
        write(f"SET statement_timeout = '{TIMEOUT}'")
        for step in due:
            if monotonic() - began < SLOW_SECONDS:
                self._search(step, now)
        write("RESET statement_timeout")

    def _search(self, step: Step, now: datetime) -> None:
        self._complete_at[step] = monotonic() + COMPLETE_EVERY_SECONDS
        try:
            [(earliest,)] = fetch(step.oldest, {"now": now, "nothing_before": LONG_AGO})
            self._move(step, earliest, now)
        except Error as error:
            if sqlstate(error) != STATEMENT_TIMEOUT:
                raise
            log.warning("oldest_not_found", step=type(step).__name__, reason=reason(error))

    def _move(self, step: Step, earliest: datetime | None, now: datetime) -> None:
        if step.oldest:
            self._marks[step] = min(earliest or now, now) - OVERLAP


def query_of(step: Step) -> LiteralString:
    """Return SQL expressions for whether rows wait for a step, and for the time of the earliest, as far as it asks."""
    waits: LiteralString = f"EXISTS ({step.waits})" if step.waits else "NULL"
    oldest: LiteralString = f"({step.oldest})" if step.oldest else "NULL"
    return f"{waits}, {oldest}"
