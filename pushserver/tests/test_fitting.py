"""Secrets of another server: one line before the first message, and nothing is written with them."""

from collections.abc import Iterator

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from pushserver.stack import database
from pushserver.stack.fitting import (
    NEWEST,
    OTHER_FIELD_KEYS,
    OTHER_PRIVATE_KEY,
    foreign_field_keys,
    foreign_private_key,
)
from registrations.keyring import keyring
from tests import factories
from waku_bridge.identity import server_identity

pytestmark = pytest.mark.django_db
OTHER = b"x" * 32


@pytest.fixture
def with_other_keys(settings: LazySettings) -> Iterator[LazySettings]:
    """A registered phone, and a process that was started with other field keys afterwards."""
    factories.make_grant(server_public_key=server_identity().pub33)
    settings.FIELD_ENCRYPTION_KEYS = [OTHER]
    keyring.cache_clear()
    yield settings
    keyring.cache_clear()


def test_an_empty_database_fits_any_keys() -> None:
    assert [*foreign_field_keys(), *foreign_private_key()] == []


def test_rows_of_these_keys_fit() -> None:
    factories.make_grant(server_public_key=server_identity().pub33)
    assert [*foreign_field_keys(), *foreign_private_key()] == []


def test_other_field_keys_are_refused_in_one_line_before_anything_starts(with_other_keys: LazySettings) -> None:
    with pytest.raises(SystemExit, match="FIELD_ENCRYPTION_KEYS do not open what is stored") as refused:
        database.bring_up_to_date(None)
    assert str(refused.value) == OTHER_FIELD_KEYS
    assert "\n" not in OTHER_FIELD_KEYS


def test_migrate_refuses_other_field_keys_too(with_other_keys: LazySettings) -> None:
    assert "pushserver.foreign_field_keys" in {problem.id for problem in run_checks(databases=["default"])}
    with pytest.raises(CommandError, match="FIELD_ENCRYPTION_KEYS do not open"):
        call_command("migrate", verbosity=0, skip_checks=False)


def test_while_the_keys_are_being_changed_one_that_is_listed_is_enough(with_other_keys: LazySettings) -> None:
    for _ in range(NEWEST - 1):
        factories.make_registration()
    assert list(foreign_field_keys()) == []


def test_another_private_key_is_named_and_the_server_starts(capfd: pytest.CaptureFixture[str]) -> None:
    factories.make_grant()
    database.bring_up_to_date(None)
    assert capfd.readouterr().err.splitlines() == [OTHER_PRIVATE_KEY]
