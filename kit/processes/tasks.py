"""What the tasks of all apps have in common."""

import traceback
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import structlog
from celery import Task
from celery.exceptions import Ignore, TaskPredicate
from django.db import InterfaceError, OperationalError

from kit.db.reasons import is_closed, reason
from kit.db.timeouts import RETENTION, timeouts

log = structlog.get_logger(__name__)

# A purge takes so long at most, and of that every other moment: the database has others to serve.
PURGE_SECONDS = 20.0


class TaskFailed(Exception):  # noqa: N818 - says what happened
    """Replaces the exception that ended a task, and names its type and place only."""

    quotes_nothing = True  # its text may be told to whoever collects errors


class MessageTask(Task):  # type: ignore[type-arg]  # only generic for the type checker
    """A task that repeats what a restart of the database or a deadlock interrupted.

    Celery acknowledges a failed task, so that without this its messages would wait for the sweep. While PostgreSQL
    serves nobody that is told in one line: the task comes again, and where it ended says nothing.
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
            if is_closed(error):
                log.warning("task_postponed", task=self.name, reason=reason(error))
                raise Ignore from None
            # Celery logs the text of what it gets, and the database's errors quote the values they are about.
            raise TaskFailed(_describe(error)) from None


def _describe(error: Exception) -> str:
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' > '.join(places)}"


def run_for_a_while(steps: Iterable[int]) -> int:
    """Take steps until `PURGE_SECONDS` are over, and return how many rows they removed. The next run takes care of the
    rest. After each step it rests as long as that took.
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
