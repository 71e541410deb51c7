"""The scheduler of beat. Two that work at once would ask for everything twice: canaries, reports, looks at gorush.

Any number may run: the one that has the leader lock works, and the others stand by. A beat that was killed is followed
by another one within seconds.
"""

from time import monotonic
from typing import Any

import structlog
from celery.beat import PersistentScheduler
from django.db import InterfaceError, OperationalError, connection

from kit.db.reasons import reason
from kit.leader import BEAT, LeaderLock
from kit.told import Told

log = structlog.get_logger(__name__)

STAND_BY_SECONDS = 1.0
# How soon PostgreSQL ends the session of a beat whose host died. One that works asks more often than that.
SESSION_SECONDS = 30
ANOTHER = "another beat works, and this one follows it when it ends"


class OneBeat(PersistentScheduler):
    """Sends what is due while no other beat does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._told = Told()
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send all that is due, and return how many seconds may pass until the next tick."""
        if why_not := _why_not():
            if self._told.is_news(why_not):
                log.warning("beat_stands_by", reason=why_not)
            return STAND_BY_SECONDS
        if self._told.is_news(""):
            log.info("beat_works")
        self._notice_clock()
        # Celery sends one task a tick, and asks for the next tick at once. The lock need not be asked for each of them.
        until = monotonic() + STAND_BY_SECONDS
        while (seconds := float(super().tick(*args, **kwargs))) <= 0 and monotonic() < until:
            pass
        return min(seconds, SESSION_SECONDS / 3)

    def _notice_clock(self) -> None:
        """Go on from now with what was sent at a time that has not come yet: the clock of this machine was put back."""
        for entry in self.schedule.values():
            now = entry.default_now()
            if entry.last_run_at and entry.last_run_at > now:
                entry.last_run_at, self._heap = now, None


def _why_not() -> str:
    """Return why this process must not work, or nothing where the lock is its own."""
    try:
        is_ours = LeaderLock(BEAT, idle_seconds=SESSION_SECONDS).take()
    except (OperationalError, InterfaceError) as error:
        connection.close()
        return reason(error)
    return "" if is_ours else ANOTHER
