"""Tests of the base class of tasks: behaviour without the database, and the text of its errors."""

import logging
from itertools import count

import psycopg
import pytest
from celery import shared_task
from celery.exceptions import Retry
from django.db import IntegrityError, InterfaceError, OperationalError
from structlog.testing import capture_logs

from kit.db.reasons import reason
from kit.processes import tasks
from kit.processes.tasks import MessageTask, TaskFailed

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
    assert "test_tasks.py" in str(caught.value)
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
    with pytest.raises(TaskFailed, match=r"test_tasks\.py"):
        raising(error, autoretry_for=())()


@pytest.mark.django_db
def test_a_purge_leaves_the_rest_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PURGE_SECONDS", -1)

    assert tasks.run_for_a_while(iter([5, 5, 5])) == 5
