"""Tables with a partition for each UTC day, so that all rows of a day are dropped at once.

The partition of a day is made the day before, and that of a week in the week before. While one is missing, because of
a full disk or a lock, its rows go to the default partition. They are moved when the partition is made, so no row waits
for one.

What has ended is partitioned by the day on which it ended (`ended_on`, a date). Open rows have tables of their own. The
statement that ends a row deletes it there and inserts it into the history.

PostgreSQL may have analyzed a table of open rows while it was empty. Until the next analysis, all indexes seem equally
cheap to the planner, also with a million rows, and so does comparing each of two hundred rows with each other. So
statements for many rows use no joins (`write_rows`), and no condition that fits another index.
`tests/test_plans.py` checks both.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Any, LiteralString

import structlog
from django.db import Error, connection, transaction
from django.db.models import QuerySet

from kit.db.base import fetch, timeouts
from kit.db.clock import DAY, day_of
from kit.db.reasons import is_lock_timeout, reason
from kit.db.sessions import Timeouts

log = structlog.get_logger(__name__)

MADE_AHEAD = 1  # partitions. The tables have some thirty indexes together, and each day has as many.
# Longer than it takes to make a partition.
SOON = timedelta(hours=1)
# To attach or drop a partition, PostgreSQL locks the whole table, and other sessions wait behind a waiting lock.
LOCK_TIMEOUT = "100ms"
# At most this many rows of the default partition are read and moved under a lock, in a second or two.
MAX_MOVED = 100_000
EXCLUDED = "nothing_of_this_day"
# For reading a large default partition without blocking other sessions.
MAKING = Timeouts(statement_seconds=600, lock_seconds=1)
STORAGE: LiteralString = "fillfactor = 80"  # so that a changed row fits on the page of its old version
# Rows that have ended do not change any more, so the first vacuum should freeze all of them. A month has more
# transactions than PostgreSQL has numbers for, and rows that are not frozen by then would all be read once more.
WRITTEN_ONCE: LiteralString = "fillfactor = 100, autovacuum_freeze_min_age = 0"
UNDER_WAY = date.max  # the day on which an open row ends, in a view of open and ended rows
_NAME = re.compile(r"_d(\d{8})$")
PARTITIONS: LiteralString = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = %s::regclass
"""
# Purges may overlap, and one must not drop the constraint that another one has just added. The lock ends with the
# session.
_TRY: LiteralString = "SELECT pg_try_advisory_lock(hashtext(%s))"
_RELEASE: LiteralString = "SELECT pg_advisory_unlock(hashtext(%s))"
_LEFT_OVER: LiteralString = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND conname = %s"
# Transactions that have used the table for more than a second. A lock of the table would wait for them, and other
# sessions would wait behind that lock.
_IN_USE: LiteralString = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE relation = %s::regclass AND granted AND pid <> pg_backend_pid() AND datname = current_database()
        AND xact_start < clock_timestamp() - interval '1 second'
"""


@dataclass(frozen=True, slots=True)
class DayTable:
    """A table that is partitioned by ranges of its ``key``, a column of times or dates.

    A partition has ``width`` days, and the name of the first one. Rows that are kept for long have more than one day in
    a partition, because a statement without a fixed day opens and locks all partitions. The key may be a time by
    somebody else's clock, which differs from ours by ``skew_days`` at most.
    """

    name: LiteralString
    key: LiteralString
    width: int = 1
    skew_days: int = 0
    storage: LiteralString = STORAGE  # parameters of the partitions of days

    @property
    def skew(self) -> timedelta:
        return self.skew_days * DAY

    def partition(self, day: date) -> str:
        """Return the name of the partition that contains a day."""
        return f"{self.name}_d{self._first(day):%Y%m%d}"

    def days(self) -> set[date]:
        """Return the first day of each existing partition."""
        found = (_NAME.search(name) for (name,) in fetch(PARTITIONS, [self.name]))
        return {date.fromisoformat(match[1]) for match in found if match}

    def make_ahead(self, *, now: datetime) -> int:
        """Make the missing partitions of `days_ahead`. Return how many were made.

        A partition that cannot be made while other sessions use the table is left for the next call.
        """
        if not self._missing(self.days_ahead(now)) or fetch(_TRY, [self.name]) == [(False,)]:
            return 0
        try:
            self._include()
            last_begun = day_of(now + SOON) + self.skew
            with timeouts(MAKING):
                missing = self._missing(self.days_ahead(now))
                return sum(self._make_unless_large(day, is_to_come=day > last_begun) for day in missing)
        finally:
            fetch(_RELEASE, [self.name])

    def _missing(self, days: Iterable[date]) -> list[date]:
        existing = self.days()
        return [day for day in days if day not in existing]

    def make_from(self, first: datetime, *, to: datetime) -> None:
        """Make the missing partitions of all days between two times, in the caller's transaction.

        It is for programs that fill a table with rows of the past.
        """
        for day in self._missing(self.days_between(day_of(first), day_of(to))):
            self.make(day)

    def days_ahead(self, now: datetime) -> list[date]:
        """Return the first days of the partitions that have to exist: that of today, and the next `MADE_AHEAD`."""
        return self.days_between(day_of(now) - self.skew, day_of(now) + MADE_AHEAD * self.width * DAY + self.skew)

    def days_between(self, first: date, last: date) -> list[date]:
        """Return the first days of the partitions for the days from ``first`` to ``last``."""
        begin = self._first(first)
        return [begin + n * DAY for n in range(0, (last - begin).days + 1, self.width)]

    def has_before(self, at: datetime) -> bool:
        """Return whether any partition, or row of the default partition, is from a day that was over at ``at``."""
        sql = f"SELECT EXISTS (SELECT FROM {self.name}_default WHERE {self.key} < %s)"
        [(has_rows,)] = fetch(sql, [_midnight(at)])
        return has_rows or bool(self._over(at))

    def drop_before(self, at: datetime) -> Iterator[int]:
        """Drop the partitions of days that were over at ``at``, and delete such rows from the default partition.

        Yield the number of rows of each step, which is 0 for a dropped partition.
        """
        yield from self.drop_days(at)
        yield from remove(
            f"""
                WITH gone AS (
                    DELETE FROM {self.name}_default WHERE ctid = ANY (ARRAY(
                        SELECT ctid FROM {self.name}_default WHERE {self.key} < %(before)s LIMIT {SET_SIZE}
                    )) RETURNING 1
                )
                SELECT count(*) FROM gone
            """,
            before=_midnight(at),
        )

    def drop_days(self, at: datetime, *, kept: Callable[[str], Sequence[int]] = lambda _: ()) -> Iterator[int]:
        """Drop the partitions of days that were over at ``at``, oldest first. Yield 0 for each of them.

        A partition that cannot be dropped now ends the call, because later ones may say what of its rows is kept.
        ``kept`` takes the name of a partition and returns ids of rows that move to the default partition instead.
        """
        for day in self._over(at):
            if not self._change(partial(self._drop, day, kept(self.partition(day)))):
                return
            log.info("partition_dropped", table=self.name, day=day.isoformat())
            yield 0

    def _over(self, at: datetime) -> list[date]:
        return sorted(day for day in self.days() if day + self.width * DAY <= day_of(at))

    def _make_unless_large(self, day: date, *, is_to_come: bool) -> bool:
        """Make the partition of a day, and return whether it was made.

        Before PostgreSQL attaches a partition, it reads the default one under a lock that blocks all sessions. A
        validated CHECK that excludes the day from a large default partition avoids this. Meanwhile no row of the day
        can be stored. So if the default partition is large, only the partition of a day to come is made.
        """
        sql = f"SELECT count(*) FROM (SELECT FROM {self.name}_default LIMIT {MAX_MOVED + 1}) AS found"
        [(rows,)] = fetch(sql)
        if rows <= MAX_MOVED:
            return self._change(partial(self.make, day))
        if not is_to_come:
            log.warning("partition_left_out", table=self.name, day=day.isoformat())
            return False
        try:
            return self._exclude(day) and self._change(partial(self.make, day))
        finally:
            self._include()

    def _exclude(self, day: date) -> bool:
        """Add a CHECK that the default partition has no row of a day, and validate it without blocking others."""
        alter = f"ALTER TABLE {self.name}_default"
        check = f"CHECK (NOT ({self._within(day)})) NOT VALID"
        added = self._change(partial(_execute, f"{alter} ADD CONSTRAINT {EXCLUDED} {check}"))
        return added and self._change(partial(_execute, f"{alter} VALIDATE CONSTRAINT {EXCLUDED}"))

    def _include(self) -> None:
        """Remove the CHECK, also one of a process that was killed, so that rows of every day can be stored.

        Once the day has its partition, such a CHECK excludes nothing.
        """
        if not fetch(_LEFT_OVER, [f"{self.name}_default", EXCLUDED]):
            return
        sql = f"ALTER TABLE {self.name}_default DROP CONSTRAINT IF EXISTS {EXCLUDED}"
        if not self._change(partial(_execute, sql), is_urgent=True):
            log.warning("partition_still_excludes_a_day", table=self.name)

    def _change(self, change: Callable[[], None], *, is_urgent: bool = False) -> bool:
        """Change the partitions in a transaction of its own, and return whether that succeeded.

        A change that is not urgent is left out while a transaction has used the table for more than a second.
        """
        [(users,)] = fetch(_IN_USE, [self.name])
        if users and not is_urgent:
            return False
        try:
            with transaction.atomic(durable=True):
                _execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                change()
        except Error as error:  # for example, another process has just made the partition
            if not is_lock_timeout(error):
                log.warning("partition_not_changed", table=self.name, reason=reason(error))
            return False
        return True

    def make(self, day: date) -> None:
        """Make the partition of a day, and move its rows from the default partition, in the caller's transaction."""
        partition = self.partition(day)
        _execute(f"LOCK TABLE {self.name}_default IN ACCESS EXCLUSIVE MODE")
        _execute(f"CREATE TABLE {partition} (LIKE {self.name} INCLUDING ALL) WITH ({self.storage})")
        _execute(f"""
            WITH moved AS (DELETE FROM {self.name}_default WHERE {self._within(day)} RETURNING *)
            INSERT INTO {partition} SELECT * FROM moved
        """)
        _execute(f"ALTER TABLE {self.name} ATTACH PARTITION {partition} {self.bounds(day)}")

    def bounds(self, day: date) -> str:
        """Return the bounds of the partition whose first day is ``day``."""
        return f"FOR VALUES FROM ('{day} 00:00+00') TO ('{day + self.width * DAY} 00:00+00')"

    def _within(self, day: date) -> str:
        return f"{self.key} >= '{day} 00:00+00' AND {self.key} < '{day + self.width * DAY} 00:00+00'"

    def _first(self, day: date) -> date:
        return day - (day.toordinal() - 1) % self.width * DAY  # with a width of seven days, a Monday

    def _drop(self, day: date, kept: Sequence[int]) -> None:
        partition = self.partition(day)
        if kept:
            _execute(f"ALTER TABLE {self.name} DETACH PARTITION {partition}")
            fetch(f"INSERT INTO {self.name} SELECT * FROM {partition} WHERE id = ANY (%s)", [list(kept)])
        _execute(f"DROP TABLE {partition}")


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _midnight(at: datetime) -> datetime:
    return datetime.combine(day_of(at), time(), UTC)


# Deletion of expired rows ---------------------------------------------------------------------------------------------

# Each step of a purge is a commit of its own. So a purge never holds a lock for long, and can stop after any step: the
# next purge continues. It hardly waits for locks: rows that another session has locked are left for the next purge.

# A purge takes at most this long, and pauses for half of it, so that other sessions can use the database.
PURGE_SECONDS = 20.0
CHUNK_SIZE = 2_000
# Rows that one statement of `remove` deletes, in about a tenth of a second.
SET_SIZE = 5_000
TIMEOUTS = Timeouts(statement_seconds=60, lock_seconds=1)


def delete_in_chunks(rows: QuerySet[Any]) -> Iterator[int]:
    """Delete ordered rows, and the rows that depend on them. Yield the number of rows of each step."""
    while keys := list(rows.values_list("pk", flat=True)[:CHUNK_SIZE]):
        rows.model._default_manager.filter(pk__in=keys).delete()  # noqa: SLF001
        yield len(keys)


def remove(sql: LiteralString, **parameters: Any) -> Iterator[int]:
    """Repeat a statement that deletes up to `SET_SIZE` rows and returns their number. Yield the number of each step.

    It is for tables that grow with the traffic, because the rows never leave the database. The statement must contain
    its limit as a literal. With a parameter, PostgreSQL plans for a tenth of the table, and reads all of it.
    """
    while True:
        [(removed,)] = fetch(sql, parameters)
        yield removed
        if removed < SET_SIZE:
            return


def run_for_a_while(steps: Iterable[int]) -> int:
    """Run steps for up to `PURGE_SECONDS`, and return the number of rows that they removed. The next run continues.

    After each step, pause for as long as the step took.
    """
    begin = step_began = monotonic()
    removed = 0
    with timeouts(TIMEOUTS):
        for rows in steps:
            removed += rows
            now = monotonic()
            if now - begin > PURGE_SECONDS:
                break
            sleep(now - step_began)
            step_began = monotonic()
    return removed
