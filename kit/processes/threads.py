"""A thread that nobody would start again."""

from abc import ABC, abstractmethod
from threading import Event, Thread

import structlog
from django.db import connection

from kit.health.change_filter import ChangeFilter

log = structlog.get_logger(__name__)

AFTER_FAULT_SECONDS = 5.0


class Tireless(ABC, Thread):
    """A thread of a worker that works until it is stopped, whatever happens to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopped = Event()
        self.faults = ChangeFilter()  # why it does not work

    @abstractmethod
    def work(self) -> None:
        """Work until `stopped` is set. What it raises is logged, and it is called again a moment later."""

    def stop(self) -> None:
        """Have it end. It does not wait for that."""
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
