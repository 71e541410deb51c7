"""The stop of a Celery worker, as its tasks learn of it: only the parent of a prefork pool hears SIGTERM.

    parent                                   children of a prefork pool, or threads
    worker_init: makes an eventfd ──fork──▶  inherit it
    SIGTERM: writes into it ──────────────▶  find it readable from then on, as nobody reads it

A task that runs for long asks `is_set`, or has a thread that waits in `wait`. Where no worker runs, nobody is told.
"""

import os
import select
from typing import Any

from celery import signals


class WorkerStop:
    """Whether this worker was told to stop. Its parent and all its children see the same."""

    def __init__(self) -> None:
        self._file: int | None = None

    def prepare(self) -> None:
        """Make what the children inherit."""
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Tell everybody. Called in a signal handler."""
        if self._file is not None:
            os.eventfd_write(self._file, 1)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the worker was told to stop, after waiting for it for at most ``seconds``."""
        files = [] if self._file is None else [self._file]
        return bool(select.select(files, [], [], seconds)[0])

    def is_set(self) -> bool:
        """Return whether the worker was told to stop."""
        return self.wait(0)


WORKER_STOP = WorkerStop()


@signals.worker_init.connect
def prepare(**_kwargs: Any) -> None:
    """Prepare the stop before the pool forks."""
    WORKER_STOP.prepare()


@signals.worker_shutting_down.connect
def announce_stop(**_kwargs: Any) -> None:
    """Tell the tasks that their worker was told to stop."""
    WORKER_STOP.set()
