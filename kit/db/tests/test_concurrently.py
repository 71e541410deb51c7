"""Migrations that make indexes of large tables, run once more over what a run that failed left behind."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from kit.db.concurrently import AddIndexAnew
from kit.db.partitions import PartitionByDay

pytestmark = pytest.mark.django_db(transaction=True)
MIGRATIONS = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
# PostgreSQL does not make indexes of these concurrently.
PARTITIONED = {
    operation.table.name
    for migration in MIGRATIONS.values()
    for operation in migration.operations
    if isinstance(operation, PartitionByDay)
}
AGAIN = sorted(
    (app, name)
    for (app, name), migration in MIGRATIONS.items()
    if (made := [operation for operation in migration.operations if isinstance(operation, AddIndexAnew)])
    and not PARTITIONED & {f"{app}_{operation.model_name}" for operation in made}
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
