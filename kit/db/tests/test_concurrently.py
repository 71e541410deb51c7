"""Migrations that make indexes of large tables, run once more over what a run that failed left behind."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from kit.db.concurrently import AddIndexAnew

pytestmark = pytest.mark.django_db(transaction=True)
# Their tables have become partitioned ones, whose indexes PostgreSQL does not make concurrently.
BY_DAY = {
    ("notifications", "0007_console_filters"),
    ("registrations", "0005_console_filters"),
    ("waku_bridge", "0007_console_filters"),
    ("waku_bridge", "0008_lost_replies"),
    ("waku_bridge", "0013_envelope_fault_index"),
}
AGAIN = sorted(
    key
    for key, migration in MigrationLoader(None, ignore_no_migrations=True).disk_migrations.items()
    if key not in BY_DAY and any(isinstance(operation, AddIndexAnew) for operation in migration.operations)
)


INVALIDATE = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass"
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"


@pytest.mark.parametrize("key", AGAIN, ids=".".join)
def test_indexes_that_are_there_already_or_invalid_are_made_anew(key: tuple[str, str]) -> None:
    loader = MigrationLoader(connection)
    migration = loader.get_migration(*key)
    names = [operation.index.name for operation in migration.operations if isinstance(operation, AddIndexAnew)]
    before = loader.project_state([parent.key for parent in loader.graph.node_map[key].parents])
    with connection.cursor() as cursor:
        cursor.execute(INVALIDATE, names[:1])

        with connection.schema_editor(atomic=False) as editor:
            migration.apply(before, editor)

        assert {name: cursor.execute(IS_VALID, [name]).fetchone() for name in names} == dict.fromkeys(names, (True,))


def test_there_are_such_migrations() -> None:
    assert AGAIN
