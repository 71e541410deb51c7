"""Start-up checks: foreign secrets, tables of another version and a wrong clock are each reported in one line."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from embedded.stack import database
from kit.db import base
from pushserver import checks
from registrations.encryption import keyring
from tests.rig import rows
from waku_bridge.query_topics import server_identity
from xmpp_bridge.identity import client_keys

pytestmark = pytest.mark.django_db
OTHER = b"x" * 32


@pytest.fixture
def with_other_keys(settings: LazySettings) -> Iterator[LazySettings]:
    """A registered phone, and a process that starts later with other field keys."""
    rows.make_grant(server_public_key=server_identity().pub33)
    settings.FIELD_ENCRYPTION_KEYS = [OTHER]
    keyring.cache_clear()
    yield settings
    keyring.cache_clear()


def test_other_field_keys_are_refused_in_one_line_before_anything_starts(with_other_keys: LazySettings) -> None:
    with pytest.raises(SystemExit, match="FIELD_ENCRYPTION_KEYS do not open the stored addresses") as refused:
        database.bring_up_to_date()
    assert str(refused.value) == checks.OTHER_FIELD_KEYS
    assert "\n" not in checks.OTHER_FIELD_KEYS
    assert "pushserver.foreign_field_keys" in {problem.id for problem in run_checks(databases=["default"])}
    with pytest.raises(CommandError, match="FIELD_ENCRYPTION_KEYS do not open"):
        call_command("migrate", verbosity=0, skip_checks=False)


def test_while_the_keys_are_being_changed_one_that_is_listed_is_enough(with_other_keys: LazySettings) -> None:
    for _ in range(checks.NEWEST - 1):
        rows.make_registration()
    assert list(checks.foreign_field_keys()) == []


def test_another_private_key_is_named_and_the_server_starts(capfd: pytest.CaptureFixture[str]) -> None:
    rows.make_grant()
    database.bring_up_to_date()
    assert capfd.readouterr().err.splitlines() == [checks.OTHER_PRIVATE_KEY]


def test_another_private_key_is_named_where_there_are_devices_of_xmpp_alone(settings: LazySettings) -> None:
    rows.make_device(key_name=client_keys()[0].name)
    rows.make_device(key_name=None)
    assert list(checks.foreign_private_key()) == []
    client_keys.cache_clear()
    settings.SERVER_PRIVATE_KEY = OTHER
    assert list(checks.foreign_private_key()) == [checks.OTHER_PRIVATE_KEY]
    client_keys.cache_clear()


# Tables, indexes and clocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_used", [False, True])
def test_a_database_of_this_version_and_of_these_keys_has_nothing_wrong(is_used: bool) -> None:
    if is_used:
        rows.make_grant(server_public_key=server_identity().pub33)
    assert [fault for find in (*checks.FAULTS_OF_WORKERS, *checks.ODDITIES) for fault in find()] == []


def test_a_version_newer_than_all_tested_ones_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "NEWEST", 1)
    [line] = checks.untried_version()
    assert re.fullmatch(r"PostgreSQL \d+\.\d+ is not tested with this server: 1 is the newest tested version\.", line)


def test_more_days_than_there_are_locks_for_are_reported(settings: LazySettings) -> None:
    settings.NOTIFICATION_RETENTION_DAYS = 10_000
    [line] = checks.few_locks()
    assert re.match(
        r"PostgreSQL has room for \d+ locks, which 10000 days of notifications may use up: ALTER SYSTEM", line
    )


def test_a_migration_that_was_not_applied_is_named() -> None:
    MigrationRecorder(connection).record_unapplied("notifications", "0001_initial")
    [problem] = checks.unfit_schema()
    assert problem.startswith("The database is not up to date: 1 migrations are missing, the first is notifications.00")
    assert "manage.py migrate" in problem


@pytest.mark.django_db(transaction=True)
def test_an_index_that_was_interrupted_is_named_with_what_mends_it() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE twice AS SELECT 1 AS number FROM generate_series(1, 2)")
        try:
            with pytest.raises(IntegrityError):
                cursor.execute("CREATE UNIQUE INDEX CONCURRENTLY half_done ON twice (number)")
            assert [problem.rpartition(": ")[2] for problem in checks.odd_schema()] == [
                "REINDEX INDEX CONCURRENTLY half_done;"
            ]
        finally:
            cursor.execute("DROP TABLE twice")


@pytest.mark.parametrize(
    ("seconds", "words"), [(3600, "3600 s ahead of"), (-3600, "3600 s behind"), (10, ""), (-10, "")]
)
def test_a_clock_that_is_an_hour_off_is_reported(seconds: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now
    monkeypatch.setattr(checks.timezone, "now", lambda: now() + timedelta(seconds=seconds))
    assert [words in problem for problem in checks.clocks_apart()] == [True] * bool(words)
