"""Tests of the start of a process, of the signal that ends a worker, and of the base class of tasks."""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from types import ModuleType

import psycopg
import pytest
from celery import shared_task
from celery.exceptions import Retry
from django.conf import LazySettings
from django.db import IntegrityError, InterfaceError, OperationalError

from kit.db.reasons import reason
from kit.processes import once, starting
from kit.processes.starting import wait_until_fit
from kit.processes.tasks import MessageTask, TaskFailed, WorkerStop
from tests.rig.logs import capture_logs

in_database = pytest.mark.django_db(transaction=True)


@pytest.fixture
def checks(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module with empty lists of checks, which the test fills."""
    module = ModuleType("checks_of_a_test")
    module.FAULTS, module.ODDITIES = [], []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(starting, "RETRY_SECONDS", 0.0)
    settings.STARTS_WHEN = module.__name__
    return module


@in_database
def test_a_process_waits_for_the_end_of_a_fault_and_logs_each_change_and_each_oddity(checks: ModuleType) -> None:
    with capture_logs() as logs:
        wait_until_fit()
    assert logs == []
    faults = iter(["The disk is full.", "The disk is full.", "A table is missing."])
    checks.FAULTS.append(lambda: [fault for fault in [next(faults, "")] if fault])
    checks.ODDITIES.append(lambda: ["The clock is wrong."])
    with capture_logs() as logs:
        wait_until_fit()
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("start_waits", "The disk is full."),
        ("start_waits", "A table is missing."),
        ("started_all_the_same", "The clock is wrong."),
    ]


@in_database
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


def _full_disk() -> OperationalError:
    error = OperationalError("could not extend file")
    error.__cause__ = psycopg.errors.DiskFull()
    return error


def test_a_value_is_made_once_also_when_several_threads_need_it_at_once():
    made = []

    @once
    def slow() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    threads = [threading.Thread(target=slow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_forked_process_makes_its_own_value_also_while_its_parent_is_making_one():
    making, is_over = threading.Event(), threading.Event()

    @once
    def pid() -> int:
        if os.getpid() == parent:
            making.set()
            assert is_over.wait(60)
        return os.getpid()

    parent = os.getpid()
    thread = threading.Thread(target=pid)
    thread.start()
    assert making.wait(60)
    if not (child := os.fork()):
        os._exit(7 if pid() == os.getpid() else 1)
    status = os.waitpid(child, 0)[1]
    is_over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
    assert pid() == parent


def test_the_signal_stays_set_and_is_never_set_outside_of_a_worker() -> None:
    stop = WorkerStop()
    stop.set()
    assert (stop.is_set(), stop.wait(0.01)) == (False, False)
    stop.prepare()
    before = stop.is_set()
    stop.set()
    stop.set()
    assert (before, stop.is_set(), stop.is_set(), stop.wait()) == (False, True, True, True)


def test_a_child_receives_the_signal_of_its_parent() -> None:
    stop = WorkerStop()
    stop.prepare()
    if not (child := os.fork()):
        os._exit(7 if stop.wait(60) else 1)
    stop.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# The base class of tasks: behaviour without the database, and the text of its errors ----------------------------------
NUMBERS = count()
SECRET = "Key (device_token)=(secret-device-token) already exists."


def raising(error, **options):
    @shared_task(base=MessageTask, name=f"tests.{next(NUMBERS)}", **options)
    def task():
        raise error

    return task


@pytest.mark.parametrize("error", [IntegrityError(SECRET), ValueError(SECRET), KeyError(SECRET)])
def test_the_error_of_a_failed_task_has_type_and_place_but_not_the_text(error):
    with pytest.raises(TaskFailed) as caught:
        raising(error)()
    assert type(error).__name__ in str(caught.value)
    assert "test_starting.py" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_celery_logs_no_text_of_an_exception(caplog):
    with caplog.at_level(logging.DEBUG):
        result = raising(IntegrityError(SECRET)).apply()
    assert result.failed()
    assert "IntegrityError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("error", [OperationalError("deadlock detected"), InterfaceError("connection already closed")])
def test_a_task_that_the_database_interrupted_is_repeated_soon(error):
    task = raising(error)
    task.push_request(called_directly=False, retries=0, id="1", delivery_info={}, is_eager=True, headers={})
    try:
        with pytest.raises(Retry) as caught:
            task.__call__()
    finally:
        task.pop_request()
    assert caught.value.when <= 8


@pytest.mark.parametrize("cause", [None, psycopg.errors.DiskFull(SECRET), psycopg.errors.AdminShutdown(SECRET)])
def test_a_periodic_task_logs_one_line_while_postgresql_refuses_all_statements(cause, caplog):
    error = OperationalError(SECRET)
    error.__cause__ = cause
    with caplog.at_level(logging.ERROR), capture_logs() as logs:
        result = raising(error, autoretry_for=()).apply()
    assert (result.state, caplog.text) == ("IGNORED", "")
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("task_postponed", reason(error))]


def test_the_error_of_a_statement_that_took_too_long_has_its_place():
    error = OperationalError(SECRET)
    error.__cause__ = psycopg.errors.QueryCanceled()
    with pytest.raises(TaskFailed, match=r"test_starting\.py"):
        raising(error, autoretry_for=())()
