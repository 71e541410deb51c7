"""Celery tasks: their base class, and the stop signal of a worker."""

import os
import select
import traceback
from pathlib import Path
from typing import Any

import structlog
from celery import Task, signals
from celery.exceptions import Ignore, TaskPredicate
from django.db import InterfaceError, OperationalError

from kit.db.reasons import is_closed, reason
from kit.processes.starting import note_refusal

log = structlog.get_logger(__name__)


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
            note_refusal(error)
            if is_closed(error):
                log.warning("task_postponed", task=self.name, reason=reason(error))
                raise Ignore from None
            # Celery logs the text of an exception, and PostgreSQL quotes stored values in it.
            raise TaskFailed(_describe(error)) from None


def _describe(error: Exception) -> str:
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {' > '.join(places)}"


class WorkerStop:
    """The stop signal of this worker for its tasks. Its parent and all children share it, or its threads.

        parent                                   children of a prefork pool, or threads
        worker_init: makes an eventfd ──fork──▶  inherit it
        SIGTERM: writes into it ──────────────▶  it stays readable, because nobody reads it

    Only the parent of a prefork pool receives SIGTERM. A long task checks `is_set`, or has a thread in `wait`. Outside
    of a worker the signal is never set.
    """

    def __init__(self) -> None:
        self._file: int | None = None

    def prepare(self) -> None:
        """Create the eventfd, before the pool forks."""
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Set the signal for all processes of the worker. It is safe in a signal handler."""
        if self._file is not None:
            os.eventfd_write(self._file, 1)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal for at most ``seconds``, and return whether it is set."""
        files = [] if self._file is None else [self._file]
        return bool(select.select(files, [], [], seconds)[0])

    def is_set(self) -> bool:
        return self.wait(0)


WORKER_STOP = WorkerStop()


@signals.worker_init.connect
def prepare(**_kwargs: Any) -> None:
    WORKER_STOP.prepare()


@signals.worker_shutting_down.connect
def announce_stop(**_kwargs: Any) -> None:
    WORKER_STOP.set()
