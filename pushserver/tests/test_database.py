"""The database before anything uses it."""

import pytest
from django.contrib.auth.models import Group, User
from django.db.migrations.loader import MigrationLoader

from notifications.gateways.gorush.models import GatewayErrorRule
from pushserver.stack import database


def test_the_files_are_the_migrations_that_django_finds():
    """Migrations of the console and its packages are among them, though processes that ask have not installed these."""
    assert database.known_migrations() == set(MigrationLoader(None).disk_migrations)


@pytest.mark.django_db
def test_a_migrated_database_gets_what_this_version_brings_and_a_first_user(capfd):
    Group.objects.all().delete()
    GatewayErrorRule.objects.all().delete()

    database.bring_up_to_date(None)

    assert set(Group.objects.values_list("name", flat=True)) == {"support", "operator", "admin"}
    assert GatewayErrorRule.objects.exists()
    assert User.objects.get().is_superuser
    assert "Console user: admin, password: " in capfd.readouterr().out
    database.bring_up_to_date(None)
    assert "password" not in capfd.readouterr().out
