"""Threads of each worker for maintenance, and the first of them: beat, which sends scheduled tasks when they are due.

Only the beat with the leader lock sends tasks, and the others stand by. Two at once would start every canary, report
and config check twice. When a beat is killed, another one follows within seconds.
"""

from abc import ABC, abstractmethod
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any

import structlog
from celery import Celery
from celery.beat import Scheduler
from django.db import InterfaceError, OperationalError, connection

from kit.db.reasons import reason
from kit.processes.leader import BEAT, LeaderLock
from kit.processes.status import ChangeFilter

log = structlog.get_logger(__name__)

AFTER_FAULT_SECONDS = 5.0
STAND_BY_SECONDS = 1.0
# PostgreSQL ends the session of a beat whose host died after this time. A working beat sends statements more often.
SESSION_SECONDS = 30
# Beat does not store when a task was last sent. So tasks with a longer period are first sent this long after the start.
FIRST_AFTER = timedelta(minutes=5)
ANOTHER = "another beat works, and this one follows it when it ends"


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


class OneBeat(Scheduler):
    """A scheduler that sends due tasks only while it has the leader lock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._change_filter = ChangeFilter()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        super().setup_schedule()
        for name, entry in self.schedule.items():
            every = timedelta(seconds=self.app.conf.beat_schedule[name]["schedule"])
            entry.last_run_at = entry.default_now() - max(every - FIRST_AFTER, timedelta())

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send all due tasks, and return the seconds until the next tick."""
        if why_not := _why_not():
            if self._change_filter.has_changed(why_not):
                log.warning("beat_stands_by", reason=why_not)
            return STAND_BY_SECONDS
        if self._change_filter.has_changed(""):
            log.info("beat_works")
        self._notice_clock()
        # Celery sends one task per tick, and returns 0 for the next tick. The lock is not checked for each of them.
        until = monotonic() + STAND_BY_SECONDS
        while (seconds := float(super().tick(*args, **kwargs))) <= 0 and monotonic() < until:
            pass
        return min(seconds, SESSION_SECONDS / 3)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task. Raise an error when this process cannot reach the broker, because another beat may reach it."""
        self.apply_async(entry, producer=producer, advance=False)

    def _notice_clock(self) -> None:
        """Correct times of last sending that are in the future, because the clock of this machine was set back."""
        for entry in self.schedule.values():
            now = entry.default_now()
            if entry.last_run_at and entry.last_run_at > now:
                entry.last_run_at, self._heap = now, None


class Beat(RestartingThread):
    """The thread of a worker that runs a beat."""

    def __init__(self, app: Celery) -> None:
        super().__init__("beat")
        self._app = app

    def work(self) -> None:
        scheduler = OneBeat(self._app)
        while not self.stopped.wait(scheduler.tick()):
            self.faults.has_changed("")


def _why_not() -> str:
    """Return why this beat must stand by, or an empty text if it has the lock."""
    try:
        is_ours = LeaderLock(BEAT, idle_seconds=SESSION_SECONDS).take()
    except (OperationalError, InterfaceError) as error:
        connection.close()
        return reason(error)
    return "" if is_ours else ANOTHER
