"""Beat: sends the tasks that are due by the clock, from a thread of each worker that serves maintenance.

Two that work at once would ask for everything twice: canaries, reports, config checks. So the one that has the leader
lock works, and the others stand by. A beat that was killed is followed by another one within seconds.
"""

from datetime import timedelta
from time import monotonic
from typing import Any

import structlog
from celery import Celery
from celery.beat import Scheduler
from django.db import InterfaceError, OperationalError, connection

from kit.db.reasons import reason
from kit.health.change_filter import ChangeFilter
from kit.processes.leader import BEAT, LeaderLock
from kit.processes.threads import Tireless

log = structlog.get_logger(__name__)

STAND_BY_SECONDS = 1.0
# How soon PostgreSQL ends the session of a beat whose host died. One that works asks more often than that.
SESSION_SECONDS = 30
# When things were done last is not kept beyond a process: what is done rarely is done so soon after its start.
FIRST_AFTER = timedelta(minutes=5)
ANOTHER = "another beat works, and this one follows it when it ends"


class OneBeat(Scheduler):
    """Sends what is due while no other beat does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._change_filter = ChangeFilter()
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Make the schedule of the settings."""
        super().setup_schedule()
        for name, entry in self.schedule.items():
            every = timedelta(seconds=self.app.conf.beat_schedule[name]["schedule"])
            entry.last_run_at = entry.default_now() - max(every - FIRST_AFTER, timedelta())

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send all that is due, and return how many seconds may pass until the next tick."""
        if why_not := _why_not():
            if self._change_filter.has_changed(why_not):
                log.warning("beat_stands_by", reason=why_not)
            return STAND_BY_SECONDS
        if self._change_filter.has_changed(""):
            log.info("beat_works")
        self._notice_clock()
        # Celery sends one task a tick, and asks for the next tick at once. The lock need not be asked for each of them.
        until = monotonic() + STAND_BY_SECONDS
        while (seconds := float(super().tick(*args, **kwargs))) <= 0 and monotonic() < until:
            pass
        return min(seconds, SESSION_SECONDS / 3)

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a task, and raise when the broker is away for this process: another beat may reach it."""
        self.apply_async(entry, producer=producer, advance=False)

    def _notice_clock(self) -> None:
        """Go on from now with what was sent at a time that has not come yet: the clock of this machine was put back."""
        for entry in self.schedule.values():
            now = entry.default_now()
            if entry.last_run_at and entry.last_run_at > now:
                entry.last_run_at, self._heap = now, None


class Beat(Tireless):
    """The thread of a worker that runs a beat."""

    def __init__(self, app: Celery) -> None:
        super().__init__("beat")
        self._app = app

    def work(self) -> None:
        scheduler = OneBeat(self._app)
        while not self.stopped.wait(scheduler.tick()):
            self.faults.has_changed("")


def _why_not() -> str:
    """Return why this process must not work, or nothing where the lock is its own."""
    try:
        is_ours = LeaderLock(BEAT, idle_seconds=SESSION_SECONDS).take()
    except (OperationalError, InterfaceError) as error:
        connection.close()
        return reason(error)
    return "" if is_ours else ANOTHER
