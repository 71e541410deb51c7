"""What migrations make of rows that were there before."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from pushserver.api import tokens
from pushserver.models import ApiToken

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_of_tokens_with_one_name_the_oldest_that_works_keeps_it() -> None:
    loader = MigrationLoader(connection)
    migration = loader.get_migration("pushserver", "0004_api_token_names")
    before = loader.project_state(("pushserver", "0003_traffic"))
    with connection.schema_editor() as editor:
        migration.unapply(before.clone(), editor)
    made = [tokens.issue("x" * 100, ["status"], by="ann", now=NOW)[0] for _ in range(4)]
    tokens.revoke([made[0].pk], now=NOW)

    with connection.schema_editor() as editor:
        migration.apply(before, editor)

    names = list(ApiToken.objects.order_by("pk").values_list("name", flat=True))
    younger = [f"{'x' * 80} ({token.prefix})" for token in made[2:]]
    assert names == ["x" * 100, "x" * 100, *younger]
    with pytest.raises(tokens.NameTakenError):
        tokens.issue("x" * 100, ["status"], by="ann", now=NOW)
