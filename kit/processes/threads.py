"""A thread that restarts its own work after every error, because nothing else would start it again."""

from abc import ABC, abstractmethod
from threading import Event, Thread

import structlog
from django.db import connection

from kit.processes.status import ChangeFilter

log = structlog.get_logger(__name__)

AFTER_FAULT_SECONDS = 5.0


class RestartingThread(ABC, Thread):
    """A thread of a worker process that works until `stop`, and starts again a few seconds after an error."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopped = Event()
        self.faults = ChangeFilter()  # of the errors of its work

    @abstractmethod
    def work(self) -> None:
        """Work until `stopped` is set. After an error, which is logged, the thread calls it again."""

    def stop(self) -> None:
        """Make the thread end, without waiting for it."""
        self.stopped.set()

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self.work()
            except Exception as error:  # noqa: BLE001 - nobody would start this thread again
                if self.faults.has_changed(name := type(error).__name__):
                    log.error("thread_failed", thread=self.name, error=name)  # noqa: TRY400 - it may quote what it sent
            finally:
                connection.close()  # and its locks with it
            self.stopped.wait(AFTER_FAULT_SECONDS)
