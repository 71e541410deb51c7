"""The database before the first process uses it: migrations, the first user, and faults in one line."""

import os
import subprocess
import sys

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from embedded.stack import database
from notifications.gateways.gorush.models import GatewayErrorRule
from pushserver.start.release import PROJECT, known_migrations


def test_the_files_are_the_migrations_that_django_finds():
    """They include the migrations of the console and its packages, which workers do not install."""
    assert known_migrations() == set(MigrationLoader(None).disk_migrations)


@pytest.mark.django_db
def test_a_migrated_database_gets_what_this_version_brings_and_a_first_user(capfd):
    Group.objects.all().delete()
    GatewayErrorRule.objects.all().delete()

    database.bring_up_to_date()

    assert set(Group.objects.values_list("name", flat=True)) == {"support", "operator", "admin"}
    assert GatewayErrorRule.objects.exists()
    assert User.objects.get().is_superuser
    assert "Console user: admin, password: " in capfd.readouterr().out
    database.bring_up_to_date()
    assert "password" not in capfd.readouterr().out


@pytest.mark.django_db
def test_a_database_of_a_newer_version_is_named_in_one_line_and_used(capfd):
    """A downgrade is possible: an older version runs on a database that a newer one migrated."""
    MigrationRecorder(connection).record_applied("notifications", "9999_later")
    database.bring_up_to_date()
    shown = capfd.readouterr().err.splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("The database was migrated by a newer version: notifications.9999_later is not part of ")


def test_a_command_that_finds_no_database_says_so_in_one_line():
    environment = os.environ | {"DATABASE_URL": "postgresql://nobody:secret@127.0.0.1:1/nothing"}
    command = [sys.executable, str(PROJECT / "manage.py"), "migrate", "--no-input"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    [line] = done.stderr.splitlines()
    assert line.startswith("manage.py: PostgreSQL cannot be reached: connection failed: ")
    assert (done.returncode, "secret" in line) == (1, False)
