"""The stop signal of a Celery worker for its tasks, because only the parent of a prefork pool receives SIGTERM.

    parent                                   children of a prefork pool, or threads
    worker_init: makes an eventfd ──fork──▶  inherit it
    SIGTERM: writes into it ──────────────▶  it stays readable, because nobody reads it

A long task checks `is_set`, or has a thread in `wait`. Outside of a worker the signal is never set.
"""

import os
import select
from typing import Any

from celery import signals


class WorkerStop:
    """The stop signal of this worker. Its parent and all children share it."""

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
