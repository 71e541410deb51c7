"""Tables that PostgreSQL keeps in a partition for each UTC day, so that a day is dropped whole.

The partition of a day is made a week before. While one is missing, because a disk was full or somebody held a lock,
rows go to the default partition and are moved when it is made: nothing waits for a partition.

A table of work is kept by the day on which a row ended (`ended_on`, a date). What is under way has a partition of its
own, and ends on the last day there is. The UPDATE that ends a row sets the day, and PostgreSQL moves it; one that has
it tried again moves it back.

PostgreSQL may have analyzed what is under way while that was empty. Until it does so again, any index looks as cheap as
any other, beside a million rows, too, and so does comparing each of two hundred rows with each. So statements of many
rows join nothing (`write_rows`), and have no condition that another index fits (`unindexed`). `tests/test_plans.py`
holds both.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, LiteralString

import structlog
from django.db import Error, connection, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from kit.db.deleting import SET_SIZE, remove
from kit.db.postgresql.timeouts import Timeouts
from kit.db.reasons import is_lock_timeout, reason
from kit.db.statements import fetch
from kit.db.timeouts import timeouts

log = structlog.get_logger(__name__)

DAY = timedelta(days=1)
MADE_AHEAD = 7  # days
MAX_PAST = 400  # days
# To attach or drop a partition PostgreSQL locks the whole table, and whoever comes meanwhile waits behind that.
LOCK_TIMEOUT = "100ms"
# Rows of the default partition that are read and moved while others wait for them, in a second or two.
MAX_MOVED = 100_000
EXCLUDED = "nothing_of_this_day"
# To read a default partition that has grown large, while others work.
MAKING = Timeouts(statement_seconds=600, lock_seconds=1)
STORAGE: LiteralString = "fillfactor = 80"  # room for the changes of a row beside it
# What has ended changes no more. Its first vacuum is to be the last one: a month has more transactions than PostgreSQL
# has numbers for, and rows that are not frozen by then are all read once more.
WRITTEN_ONCE: LiteralString = "fillfactor = 100, autovacuum_freeze_min_age = 0"
# From what is under way rows go as fast as they come, also where millions wait.
PASSED_THROUGH: LiteralString = f"{STORAGE}, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000"
UNDER_WAY = date.max
# What works the queues names the partition of what is under way. Only an UPDATE that ends rows needs the whole table,
# and this condition, which has PostgreSQL plan for that partition and for no other. While it has no statistics it takes
# an equality for rare, and looks for that instead of a row's key.
IS_UNDER_WAY: LiteralString = "ended_on >= '9999-12-31'"
HAS_ENDED: LiteralString = "ended_on < '9999-12-31'"
_NAME = re.compile(r"_d(\d{8})$")
_PARTITIONS: LiteralString = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = %s::regclass
"""
# Purges may overlap, and one must not include what another excludes. The lock ends with the session.
_TRY: LiteralString = "SELECT pg_try_advisory_lock(hashtext(%s))"
_RELEASE: LiteralString = "SELECT pg_advisory_unlock(hashtext(%s))"
_LEFT_OVER: LiteralString = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND conname = %s"
# Transactions that would make us wait, and others behind us. A moment later they are most likely over.
_IN_USE: LiteralString = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE relation = %s::regclass AND granted AND pid <> pg_backend_pid() AND datname = current_database()
        AND xact_start < clock_timestamp() - interval '1 second'
"""


@dataclass(frozen=True, slots=True)
class DayTable:
    """A table that is partitioned by range of a column of times or dates, its ``key``.

    A partition has a day, or ``width`` days for what is kept so long that days would be too many: a statement that may
    need any of them opens and locks them all. It is named after the first.
    """

    name: LiteralString
    key: LiteralString
    width: int = 1
    storage: LiteralString = STORAGE  # of a day

    def partition(self, day: date) -> str:
        """Return the name of the partition that has this day."""
        return f"{self.name}_d{self._first(day):%Y%m%d}"

    def days(self) -> set[date]:
        """Return the days that have a partition, of each the first."""
        found = (_NAME.search(name) for (name,) in fetch(_PARTITIONS, [self.name]))
        return {date.fromisoformat(match[1]) for match in found if match}

    def make_ahead(self, *, now: datetime) -> int:
        """Make the partitions that are missing from yesterday's on. Return how many were made.

        What cannot be made now, as others work with the table, is left for the next time.
        """
        [(is_alone,)] = fetch(_TRY, [self.name])
        if not is_alone:
            return 0
        try:
            return self._make_missing(now)
        finally:
            fetch(_RELEASE, [self.name])

    def _make_missing(self, now: datetime) -> int:
        self._include()
        existing = self.days()
        missing = [day for day in self.days_ahead(now) if day not in existing]
        if not missing:
            return 0
        with timeouts(MAKING):
            return sum(self._make_unless_large(day, is_to_come=day > day_of(now) + DAY) for day in missing)

    def make_from(self, first: datetime, *, to: datetime) -> None:
        """Make the partitions of all days between two times that have none, in the caller's transaction: for what fills
        a table with a past.
        """
        existing = self.days()
        for day in self.days_between(day_of(first), day_of(to)):
            if day not in existing:
                self.make(day)

    def days_ahead(self, now: datetime) -> list[date]:
        """Return the first days of the partitions that there have to be: from yesterday's on."""
        return self.days_between(day_of(now) - DAY, day_of(now) + MADE_AHEAD * DAY)

    def days_between(self, first: date, last: date) -> list[date]:
        """Return the first days of the partitions for all days between two."""
        begin = self._first(first)
        return [begin + n * DAY for n in range(0, (last - begin).days + 1, self.width)]

    def has_before(self, at: datetime) -> bool:
        """Return whether there is a partition, or a row in the default one, of a day that was over at that time."""
        sql = f"SELECT EXISTS (SELECT FROM {self.name}_default WHERE {self.key} < %s)"
        [(has_rows,)] = fetch(sql, [_midnight(at)])
        return has_rows or bool(self._over(at))

    def drop_before(self, at: datetime) -> Iterator[int]:
        """Drop the partitions of days that were over at that time, and delete the rows of such days that are in the
        default partition. Yield how many rows each step removed, as far as that is known.
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
        """Drop the partitions of days that were over at that time. Rows whose ids ``kept`` returns for the name of a
        partition go to the default one. Yield 0 for each partition.
        """
        for day in self._over(at):
            if self._change(partial(self._drop, day, kept(self.partition(day)))):
                log.info("partition_dropped", table=self.name, day=day.isoformat())
                yield 0

    def _over(self, at: datetime) -> list[date]:
        return sorted(day for day in self.days() if day + self.width * DAY <= day_of(at))

    def _make_unless_large(self, day: date, *, is_to_come: bool) -> bool:
        """Make the partition of a day, unless the default partition is large and the day has begun or begins soon.
        Return whether it was made.

        PostgreSQL reads the default partition under a lock for everybody before it attaches another one. A validated
        CHECK that excludes the day spares that. While it is there the day has no place at all, so it is used for days
        that are far enough away.
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
        """Have PostgreSQL find out, while others work, that the default partition has nothing of a day."""
        alter = f"ALTER TABLE {self.name}_default"
        check = f"CHECK (NOT ({self._within(day)})) NOT VALID"
        added = self._change(partial(_execute, f"{alter} ADD CONSTRAINT {EXCLUDED} {check}"))
        return added and self._change(partial(_execute, f"{alter} VALIDATE CONSTRAINT {EXCLUDED}"))

    def _include(self) -> None:
        """Let the default partition have rows of every day again, also after somebody who excluded one was killed."""
        if not fetch(_LEFT_OVER, [f"{self.name}_default", EXCLUDED]):
            return
        sql = f"ALTER TABLE {self.name}_default DROP CONSTRAINT IF EXISTS {EXCLUDED}"
        if not self._change(partial(_execute, sql), is_urgent=True):
            log.warning("partition_still_excludes_a_day", table=self.name)

    def _change(self, change: Callable[[], None], *, is_urgent: bool = False) -> bool:
        """Change the partitions in a transaction of its own, unless somebody works with the table for longer and it is
        not urgent. Return whether it was changed.
        """
        [(users,)] = fetch(_IN_USE, [self.name])
        if users and not is_urgent:
            return False
        try:
            with transaction.atomic(durable=True), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                change()
        except Error as error:  # also when another process has just made it
            if not is_lock_timeout(error):
                log.warning("partition_not_changed", table=self.name, reason=reason(error))
            return False
        return True

    def make(self, day: date) -> None:
        """Make the partition of a day and move what the default partition has of it, in the caller's transaction."""
        partition = self.partition(day)
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {self.name}_default IN ACCESS EXCLUSIVE MODE")
            cursor.execute(f"CREATE TABLE {partition} (LIKE {self.name} INCLUDING ALL) WITH ({self.storage})")
            cursor.execute(f"""
                WITH moved AS (DELETE FROM {self.name}_default WHERE {self._within(day)} RETURNING *)
                INSERT INTO {partition} SELECT * FROM moved
            """)
            cursor.execute(f"ALTER TABLE {self.name} ATTACH PARTITION {partition} {self.bounds(day)}")

    def bounds(self, day: date) -> str:
        """Return the bounds of the partition whose first day this is."""
        return f"FOR VALUES FROM ('{day} 00:00+00') TO ('{day + self.width * DAY} 00:00+00')"

    def _within(self, day: date) -> str:
        return f"{self.key} >= '{day} 00:00+00' AND {self.key} < '{day + self.width * DAY} 00:00+00'"

    def _first(self, day: date) -> date:
        return day - (day.toordinal() - 1) % self.width * DAY  # for seven days a Monday

    def _drop(self, day: date, kept: Sequence[int]) -> None:
        partition = self.partition(day)
        if kept:
            _execute(f"ALTER TABLE {self.name} DETACH PARTITION {partition}")
            fetch(f"INSERT INTO {self.name} SELECT * FROM {partition} WHERE id = ANY (%s)", [list(kept)])
        _execute(f"DROP TABLE {partition}")


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def day_of(at: datetime) -> date:
    """Return the day that a time belongs to, whose partition has what ended then."""
    return at.astimezone(UTC).date()


def _midnight(at: datetime) -> datetime:
    return datetime.combine(day_of(at), time(), UTC)


def with_days(sql: LiteralString, now: datetime) -> LiteralString:
    """Return a statement with the days on which what it looks for may have ended, in place of ``{days}``.

    These are today and yesterday, and tomorrow, should the clock be set back. They stand in the text: with a parameter
    PostgreSQL would plan each time.
    """
    days = ", ".join(f"'{day_of(now) + number * DAY}'" for number in (-1, 0, 1))
    return sql.replace("{days}", days)


# Of a table that becomes partitioned its rows, checks, indexes and the sequence of its ids stay, under their names.
# Unique and foreign keys go, its own and those of other tables that refer to it.
_INDEXES: LiteralString = """
    SELECT pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = %s::regclass AND NOT indisprimary AND NOT indisunique
"""
_PRIMARY_KEY: LiteralString = """
    SELECT attname, pg_get_serial_sequence(%(name)s, attname) FROM pg_index
    JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
    WHERE indrelid = %(name)s::regclass AND indisprimary
"""


class PartitionByDay(Operation):
    """An operation that has a table kept in a partition for each day: those of its rows, and those to come.

    One that is kept by the day on which its rows ended has a partition of what is under way, too: `<table>_under_way`.
    """

    reversible = False

    def __init__(self, table: DayTable) -> None:
        self.table = table

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: a model knows nothing of partitions."""

    def describe(self) -> str:
        return f"Partition {self.table.name} by day"

    def database_forwards(
        self, _app_label: str, schema_editor: BaseDatabaseSchemaEditor, _from_state: Any, _to_state: Any
    ) -> None:
        """Copy the rows into a new table of the same name."""
        name, key = self.table.name, self.table.key
        indexes = [definition for (definition,) in fetch(_INDEXES, [name])]
        [(pk, sequence)] = fetch(_PRIMARY_KEY, {"name": name})
        numbering = self._numbering(pk) if sequence else ()
        columns = f"(LIKE {name}_before INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        for sql in (
            f"ALTER TABLE {name} RENAME TO {name}_before",
            f"CREATE TABLE {name} {columns} PARTITION BY RANGE ({key})",
            *self._partitions(),
            f"INSERT INTO {name} SELECT * FROM {name}_before",
            f"DROP TABLE {name}_before CASCADE",
            *numbering,
            f"ALTER TABLE {name} ADD PRIMARY KEY ({pk}, {key})",
            *indexes,
        ):
            schema_editor.execute(sql)

    def _partitions(self) -> Iterator[str]:
        """Yield the statements that make the partitions: the default one, what is under way, and the days."""
        name, key = self.table.name, self.table.key
        [(first, now)] = fetch(f"SELECT coalesce(min({key})::timestamptz, now()), now() FROM {name}")
        past = self.table.days_between(max(day_of(first), day_of(now) - MAX_PAST * DAY), day_of(now))
        of_table = f"PARTITION OF {name}"
        yield f"CREATE TABLE {name}_default {of_table} DEFAULT WITH ({STORAGE})"
        if key == "ended_on":
            bounds = f"FOR VALUES FROM ('{UNDER_WAY}') TO (MAXVALUE)"
            yield f"CREATE TABLE {name}_under_way {of_table} {bounds} WITH ({PASSED_THROUGH})"
        for day in sorted({*past, *self.table.days_ahead(now)}):
            partition = f"{self.table.partition(day)} {of_table} {self.table.bounds(day)}"
            yield f"CREATE TABLE {partition} WITH ({self.table.storage})"

    def _numbering(self, pk: str) -> Sequence[str]:
        """Return the statements by which the table goes on with the ids that it had given out."""
        name, sequence = self.table.name, f"{self.table.name}_{pk}_seq"
        [(first,)] = fetch(
            f"SELECT greatest(coalesce(max({pk}), 0), (SELECT last_value FROM {sequence})) + 1 FROM {name}"
        )
        return (
            f"CREATE SEQUENCE {sequence} START {first} OWNED BY {name}.{pk}",
            f"ALTER TABLE {name} ALTER {pk} SET DEFAULT nextval('{sequence}')",
        )


def first_day(received: Iterable[datetime]) -> date:
    """Return the first day on which something of requests that were received then may have ended."""
    return day_of(min(received) - DAY)  # the clock may have been set back
