"""`VERSION`, CHANGELOG.md and `manage.py version` have the same version, and a database is compared with the code."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.sql import emit_pre_migrate_signal
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from embedded.servers.postgres import EmbeddedPostgres
from kit.db.statements import fetch, write
from kit.db.timeouts import MIGRATIONS, timeouts
from pushserver.start.release import NO_WAY_UP, PROJECT, compare, version

KNOWN = {("app", "0001_initial"), ("app", "0002_more"), ("other", "0001_initial")}


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    released = re.findall(r"^## (\d.*)$", (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert version() == project["version"] == released[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version())


def test_apps_that_are_gone_and_squashed_migrations_are_not_newer() -> None:
    assert compare(KNOWN, KNOWN | {("gone", "0009_last"), ("app", "0001_a_squashed_one")}).newer == ()


def test_a_database_of_before_0_2_is_too_old() -> None:
    found = compare(KNOWN, {("pushserver", "0001_opened_records")})
    assert (found.is_too_old, found.words) == (True, NO_WAY_UP)


@pytest.fixture
def database_of_before(postgres: EmbeddedPostgres, worker_id: str) -> Iterator[str]:
    """A database with the first migration of a version before 0.2.0. The value is its URL."""
    name = f"before_0_2_{worker_id}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(postgres.url(name), autocommit=True) as own:
        own.execute("CREATE TABLE django_migrations (id serial, app text, name text, applied timestamptz)")
        own.execute("INSERT INTO django_migrations (app, name) VALUES ('pushserver', '0001_opened_records')")
    yield postgres.url(name)
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_migrating_a_database_of_before_0_2_is_refused_and_leaves_it_as_it_is(database_of_before: str) -> None:
    command = [sys.executable, str(PROJECT / "manage.py"), "migrate", "--no-input"]
    environment = os.environ | {"DATABASE_URL": database_of_before}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, f"CommandError: The database is {NO_WAY_UP}.\n")
    with psycopg.connect(database_of_before) as own:
        tables = own.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
        )
        assert tables.fetchall() == [("django_migrations",)]
        assert own.execute("SELECT name FROM django_migrations").fetchall() == [("0001_opened_records",)]


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
    environment = os.environ | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    command = [sys.executable, str(PROJECT / "manage.py"), "version"]
    reported = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert reported.stdout.splitlines()[0] == f"pushserver {version()}"
    assert reported.stdout.splitlines()[2] == "database cannot be reached"


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
