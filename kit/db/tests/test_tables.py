"""Tests of what is done with whole tables: an index is made anew, many rows are deleted, all are estimated."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import Index
from django.utils import timezone

from kit.db.concurrently import AddIndexAnew
from kit.db.deleting import delete_in_chunks
from kit.db.estimates import stored
from kit.db.statements import fetch
from registrations.models import RegistrationEvent
from tests.rig import rows

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


def test_rows_are_removed_in_small_steps_and_few_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.db.deleting.CHUNK_SIZE", 2)
    for _ in range(5):
        rows.make_event(kind=RegistrationEvent.Kind.EXPIRED, at=timezone.now() - timedelta(days=800))
    assert list(delete_in_chunks(RegistrationEvent.objects.order_by("at"))) == [2, 2, 1]
    rows.make_device()
    assert fetch(stored("xmpp_bridge_device")) == [(1,)]
