"""Indexes of large tables that a migration makes, once more over what a run that failed left behind."""

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import Index

from kit.db.concurrently import AddIndexAnew

pytestmark = pytest.mark.django_db(transaction=True)
INVALIDATE = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass"
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = %s::regclass"


@pytest.mark.parametrize("left_behind", ["valid", "invalid"])
def test_an_index_that_is_there_already_or_invalid_is_made_anew(left_behind: str) -> None:
    """By an index of a table that is not partitioned: PostgreSQL makes those of others with all writers waiting."""
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
