"""Migration operations: tables that are partitioned by day, open rows, and indexes of tables in use."""

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from kit.db.partitions import DAY, PARTITIONS, STORAGE, UNDER_WAY, DayTable, day_of
from kit.db.statements import fetch

MAX_PAST = 400  # days
# Rows leave a table of open rows as fast as they arrive, also where millions wait.
PASSED_THROUGH: LiteralString = f"{STORAGE}, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000"

# A table that becomes partitioned keeps its rows, its checks, its indexes, and the sequence of its ids, with their
# names. Its unique keys and foreign keys are dropped, and so are the foreign keys of other tables that refer to it.
_INDEXES: LiteralString = """
    SELECT pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = %s::regclass AND NOT indisprimary AND NOT indisunique
"""
_INDEX_NAMES: LiteralString = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass"
_PRIMARY_KEY: LiteralString = """
    SELECT attname, pg_get_serial_sequence(%(name)s, attname) FROM pg_index
    JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
    WHERE indrelid = %(name)s::regclass AND indisprimary
"""


class PartitionByDay(Operation):
    """A migration that partitions a table by day: one partition for each day of its rows, and those made ahead.

    A table that is partitioned by `ended_on` also gets a partition for open rows. `SplitOpenRows` makes it a table.
    """

    reversible = False

    def __init__(self, table: DayTable) -> None:
        self.table = table

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing, because models have no partitions."""

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
        """Yield the statements that make the partitions: the default one, the one of rows under way, and the days."""
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
        """Return the statements that make the table continue after its highest id."""
        name, sequence = self.table.name, f"{self.table.name}_{pk}_seq"
        [(first,)] = fetch(
            f"SELECT greatest(coalesce(max({pk}), 0), (SELECT last_value FROM {sequence})) + 1 FROM {name}"
        )
        return (
            f"CREATE SEQUENCE {sequence} START {first} OWNED BY {name}.{pk}",
            f"ALTER TABLE {name} ALTER {pk} SET DEFAULT nextval('{sequence}')",
        )


class SplitOpenRows(Operation):
    """A migration that makes the partition of rows under way a table of its own, and its siblings the history by day.

    No row is copied. The open table keeps no index, and the caller makes those that it needs.
    """

    reversible = False

    def __init__(
        self, table: LiteralString, open_table: LiteralString, history: LiteralString, key: LiteralString = "id"
    ) -> None:
        self.table, self.open_table, self.history, self.key = table, open_table, history, key

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing, because the migration names its models itself."""

    def describe(self) -> str:
        return f"Split {self.table} into open rows and history"

    def database_forwards(
        self, _app_label: str, schema_editor: BaseDatabaseSchemaEditor, _from_state: Any, _to_state: Any
    ) -> None:
        """Detach the partition of rows under way, and rename what remains."""
        for sql in self._statements():
            schema_editor.execute(sql)

    def _statements(self) -> Iterator[str]:
        name, open_table = self.table, self.open_table
        yield f"ALTER TABLE {name} DETACH PARTITION {name}_under_way"
        yield f"ALTER TABLE {name}_under_way RENAME TO {open_table}"
        yield f"ALTER TABLE {open_table} DROP COLUMN ended_on"  # and with it the keys and the checks
        for (index,) in fetch(_INDEX_NAMES, [open_table]):
            yield f"DROP INDEX {index}"
        yield f"ALTER TABLE {open_table} ADD PRIMARY KEY ({self.key})"
        if self.key == "id":
            yield f"ALTER SEQUENCE {name}_id_seq OWNED BY {open_table}.id"
            yield f"ALTER SEQUENCE {name}_id_seq RENAME TO {open_table}_id_seq"
        for (partition,) in fetch(PARTITIONS, [name]):
            yield f"ALTER TABLE {partition} RENAME TO {partition.replace(name, self.history, 1)}"
        yield f"ALTER TABLE {name} RENAME TO {self.history}"


class AddIndexAnew(AddIndexConcurrently):
    """An operation that creates an index without blocking writers, and can be repeated after a failure.

    A failed migration without a transaction leaves the indexes that it has created. One of them may be marked as
    invalid, and PostgreSQL never uses it. So this operation first drops an index of that name.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._ensure_not_in_transaction(schema_editor)
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        super().database_forwards(app_label, schema_editor, from_state, to_state)
