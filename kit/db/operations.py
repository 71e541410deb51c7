"""Migration operations: tables that are partitioned by day, open rows, and indexes of tables in use."""

from collections.abc import Iterator
from typing import Any, LiteralString

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from kit.db.base import fetch
from kit.db.partitions import PARTITIONS, STORAGE, UNDER_WAY, DayTable

# Rows leave a table of open rows as fast as they arrive, also where millions wait.
PASSED_THROUGH: LiteralString = f"{STORAGE}, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000"

# A table that becomes partitioned keeps its checks, its indexes, and the sequence of its ids, with their names. Its
# unique keys and foreign keys are dropped, and so are the foreign keys of other tables that refer to it.
_INDEXES: LiteralString = """
    SELECT pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = %s::regclass AND NOT indisprimary AND NOT indisunique
"""
_INDEX_NAMES: LiteralString = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass"
_PRIMARY_KEY: LiteralString = """
    SELECT attname, pg_get_serial_sequence(%(name)s, attname) IS NOT NULL, now() FROM pg_index
    JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
    WHERE indrelid = %(name)s::regclass AND indisprimary
"""


class Statements(Operation):
    """A migration of statements that depend on the table as it is. Models do not show what they change."""

    reversible = False

    def statements(self) -> Iterator[str]:
        """Yield the statements, each of which is executed before the next is asked for."""
        raise NotImplementedError

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing, because the migration names its models itself."""

    def database_forwards(
        self, _app_label: str, schema_editor: BaseDatabaseSchemaEditor, _from_state: Any, _to_state: Any
    ) -> None:
        """Execute the statements."""
        for sql in self.statements():
            schema_editor.execute(sql)


class PartitionByDay(Statements):
    """A migration that partitions a table by day. The table is empty, because the same migration has created it.

    A table that is partitioned by `ended_on` also gets a partition for open rows. `SplitOpenRows` makes it a table.
    """

    def __init__(self, table: DayTable) -> None:
        self.table = table

    def describe(self) -> str:
        return f"Partition {self.table.name} by day"

    def statements(self) -> Iterator[str]:
        """Yield the statements that make a new table of the same name."""
        name, key = self.table.name, self.table.key
        indexes = [definition for (definition,) in fetch(_INDEXES, [name])]
        [(pk, has_sequence, now)] = fetch(_PRIMARY_KEY, {"name": name})
        columns = f"(LIKE {name}_before INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        yield f"ALTER TABLE {name} RENAME TO {name}_before"
        yield f"CREATE TABLE {name} {columns} PARTITION BY RANGE ({key})"
        yield f"DROP TABLE {name}_before CASCADE"
        if has_sequence:
            yield f"CREATE SEQUENCE {name}_{pk}_seq OWNED BY {name}.{pk}"
            yield f"ALTER TABLE {name} ALTER {pk} SET DEFAULT nextval('{name}_{pk}_seq')"
        yield f"ALTER TABLE {name} ADD PRIMARY KEY ({pk}, {key})"
        yield from indexes
        yield f"CREATE TABLE {name}_default PARTITION OF {name} DEFAULT WITH ({STORAGE})"
        if key == "ended_on":
            bounds = f"FOR VALUES FROM ('{UNDER_WAY}') TO (MAXVALUE)"
            yield f"CREATE TABLE {name}_under_way PARTITION OF {name} {bounds} WITH ({PASSED_THROUGH})"
        for day in self.table.days_ahead(now):
            bounds = self.table.bounds(day)
            yield f"CREATE TABLE {self.table.partition(day)} PARTITION OF {name} {bounds} WITH ({self.table.storage})"


class SplitOpenRows(Statements):
    """A migration that makes the partition of rows under way a table of its own, and its siblings the history by day.

    No row is copied. The open table keeps no index, and the caller makes those that it needs.
    """

    def __init__(
        self, table: LiteralString, open_table: LiteralString, history: LiteralString, key: LiteralString = "id"
    ) -> None:
        self.table, self.open_table, self.history, self.key = table, open_table, history, key

    def describe(self) -> str:
        return f"Split {self.table} into open rows and history"

    def statements(self) -> Iterator[str]:
        """Yield the statements that detach the partition of rows under way, and rename what remains."""
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
