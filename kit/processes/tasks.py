"""Base class of all Celery tasks, and the loop of the tasks that purge rows."""

import traceback
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import structlog
from celery import Task
from celery.exceptions import Ignore, TaskPredicate
from django.db import InterfaceError, OperationalError

from kit.db.reasons import is_closed, reason, sqlstate
from kit.db.timeouts import RETENTION, timeouts
from kit.processes import own_faults

log = structlog.get_logger(__name__)

# A purge takes at most this long, and pauses for half of it, so that other sessions can use the database.
PURGE_SECONDS = 20.0


class TaskFailed(Exception):  # noqa: N818 - says what happened
    """Replaces the exception that ended a task. Its text has only the type and the place of that exception."""

    quotes_nothing = True  # so its text may be sent to the error collector


class MessageTask(Task):  # type: ignore[type-arg]  # only generic for the type checker
    """A task that is repeated after a restart of the database or a deadlock.

    Celery acknowledges a failed task. Without a repetition, its messages would wait for the next sweep. While
    PostgreSQL refuses all statements, the task only logs one line, because it is scheduled again.
    """

    autoretry_for = (OperationalError, InterfaceError)
    retry_backoff = 1
    retry_backoff_max = 8
    max_retries = 5

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TaskPredicate:
            raise
        except Exception as error:  # noqa: BLE001 - no error may reach the log with its text
            own_faults.note_refusal(sqlstate(error))
            if is_closed(error):
                log.warning("task_postponed", task=self.name, reason=reason(error))
                raise Ignore from None
            # Celery logs the text of an exception, and PostgreSQL quotes stored values in it.
            raise TaskFailed(_describe(error)) from None


def _describe(error: Exception) -> str:
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' > '.join(places)}"


def run_for_a_while(steps: Iterable[int]) -> int:
    """Run steps for up to `PURGE_SECONDS`, and return the number of rows that they removed. The next run continues.

    After each step, pause for as long as the step took.
    """
    begin = step_began = monotonic()
    removed = 0
    with timeouts(RETENTION):
        for rows in steps:
            removed += rows
            now = monotonic()
            if now - begin > PURGE_SECONDS:
                break
            sleep(now - step_began)
            step_began = monotonic()
    return removed
