"""`VERSION`, CHANGELOG.md and `manage.py version` have the same version, and a database is compared with the code."""

import re
import tomllib
from collections.abc import Callable

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.sql import emit_pre_migrate_signal
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from kit.db.base import MIGRATIONS, fetch, timeouts, write
from pushserver.release import NO_WAY_UP, PROJECT, compare, version
from tests.rig.server import manage_py

KNOWN = {("app", "0001_initial"), ("app", "0002_more"), ("other", "0001_initial")}


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    released = re.findall(r"^## (\d.*)$", (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert version() == project["version"] == released[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version())


def test_apps_that_are_gone_and_squashed_migrations_are_not_newer_and_those_of_before_0_2_too_old() -> None:
    assert compare(KNOWN, KNOWN | {("gone", "0009_last"), ("app", "0001_a_squashed_one")}).newer == ()
    assert compare(KNOWN, {("pushserver", "0001_opened_records")}).words == NO_WAY_UP


def test_migrating_a_database_of_before_0_2_is_refused_and_leaves_it_as_it_is(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("before_0_2")
    with psycopg.connect(url, autocommit=True) as own:
        own.execute("DELETE FROM django_migrations")
        own.execute("INSERT INTO django_migrations VALUES (0, 'pushserver', '0001_opened_records', now())")
        before = own.execute("SELECT count(*) FROM pg_class").fetchall()
        ended = manage_py("migrate", "--no-input", DATABASE_URL=url)
        assert (ended.returncode, ended.stderr) == (1, f"CommandError: The database is {NO_WAY_UP}.\n")
        assert own.execute("SELECT name FROM django_migrations").fetchall() == [("0001_opened_records",)]
        assert own.execute("SELECT count(*) FROM pg_class").fetchall() == before


@pytest.mark.django_db(transaction=True)
def test_a_migration_waits_ten_seconds_for_a_lock() -> None:
    """Later statements wait behind it. The test sends the signal of `migrate`."""
    with timeouts(MIGRATIONS):
        [before] = fetch("SELECT current_setting('lock_timeout')")
    write("SET lock_timeout = '1h'")
    emit_pre_migrate_signal(verbosity=0, interactive=False, db="default")
    assert fetch("SELECT current_setting('lock_timeout')") == [before] == [("10s",)]
    connection.close()


def test_manage_prints_our_version_and_not_that_of_django() -> None:
    """It needs no database: people need the version above all of an installation that does not start."""
    lines = manage_py("version", DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing").stdout.splitlines()
    assert (lines[0], lines[2]) == (f"pushserver {version()}", "database cannot be reached")


@pytest.mark.django_db
def test_the_command_prints_the_version_and_the_state_of_the_database(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("version")
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first == f"pushserver {version()}"
    assert re.fullmatch(r"Python 3\.\d+\.\d+\S*, Django 5\.\S+", second)
    assert third == "database up to date"
    assert re.fullmatch(r"PostgreSQL 1[5-8]\.\d+", fourth)
    MigrationRecorder(connection).record_applied("pushserver", "9999_later")
    call_command("version")
    assert capsys.readouterr().out.splitlines()[2].startswith("database migrated by a newer version: pushserver.9999_")
