"""Tests of the operation that creates an index, also after a failed run has left a valid or invalid one."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import Index

from kit.db.concurrently import AddIndexAnew

pytestmark = pytest.mark.django_db(transaction=True)
INVALIDATE = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass"
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"


@pytest.mark.parametrize("left_behind", ["valid", "invalid"])
def test_an_index_that_exists_or_is_invalid_is_created_again(left_behind: str) -> None:
    """The table is not partitioned: PostgreSQL blocks writers while it creates an index of a partitioned one."""
    state = MigrationLoader(connection).project_state()
    operation = AddIndexAnew("grant", Index(fields=["granted_at"], name="made_anew"))
    after = state.clone()
    operation.state_forwards("registrations", after)
    with connection.cursor() as cursor, connection.schema_editor(atomic=False) as editor:
        for _ in range(2):
            operation.database_forwards("registrations", editor, state, after)
            if left_behind == "invalid":
                cursor.execute(INVALIDATE, ["made_anew"])
        operation.database_forwards("registrations", editor, state, after)
        assert cursor.execute(IS_VALID, ["made_anew"]).fetchone() == (True,)
        cursor.execute("DROP INDEX made_anew")
