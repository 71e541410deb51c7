"""Tests of start-up checks: a process logs each fault in one line, and waits until it is repaired."""

import sys
from collections.abc import Iterator
from types import ModuleType

import psycopg
import pytest
from django.conf import LazySettings
from django.db import OperationalError
from structlog.testing import capture_logs

from kit.processes import starting
from kit.processes.starting import wait_until_fit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def checks(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with empty lists of checks, which the test fills."""
    module = ModuleType("checks_of_a_test")
    module.FAULTS, module.ODDITIES = [], []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(starting, "RETRY_SECONDS", 0.0)
    settings.STARTS_WHEN = module.__name__
    return module


def test_nothing_is_logged_without_faults(checks: ModuleType) -> None:
    with capture_logs() as logs:
        wait_until_fit()
    assert logs == []


def test_a_process_waits_for_the_end_of_a_fault_and_logs_each_change(checks: ModuleType) -> None:
    faults = iter(["The disk is full.", "The disk is full.", "A table is missing."])
    checks.FAULTS.append(lambda: [fault for fault in [next(faults, "")] if fault])
    with capture_logs() as logs:
        wait_until_fit()
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("start_waits", "The disk is full."),
        ("start_waits", "A table is missing."),
    ]


def test_an_unavailable_database_is_a_fault(checks: ModuleType) -> None:
    answers = iter([OperationalError("server closed the connection"), _full_disk()])

    def ask() -> Iterator[str]:
        for error in answers:
            raise error
        yield from ()

    checks.FAULTS.append(ask)
    with capture_logs() as logs:
        wait_until_fit()
    assert [entry["reason"] for entry in logs] == [
        "PostgreSQL does not answer",
        "the disk of PostgreSQL is full: free some space, and start PostgreSQL if it has stopped",
    ]


def test_an_oddity_is_logged_and_the_process_starts(checks: ModuleType) -> None:
    checks.ODDITIES.append(lambda: ["The clock is wrong."])
    with capture_logs() as logs:
        wait_until_fit()
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("started_all_the_same", "The clock is wrong.")]


def _full_disk() -> OperationalError:
    error = OperationalError("could not extend file")
    error.__cause__ = psycopg.errors.DiskFull()
    return error
