"""The scheduler of beat. Two that work at once would ask for everything twice: canaries, reports, looks at gorush.

Which one works is said by a session advisory lock of PostgreSQL, as it is among bridges: any number may run, and the
others stand by. The lock ends with its session, so a beat that was killed is followed by another one within seconds.
"""

from typing import Any

import structlog
from celery.beat import PersistentScheduler
from django.db import InterfaceError, OperationalError, connection

from kit.db.reasons import reason
from kit.db.statements import fetch
from kit.told import Told

log = structlog.get_logger(__name__)

# The 64 bits of the advisory lock, which spell "PushBeat".
KEY = 0x50_75_73_68_42_65_61_74
STAND_BY_SECONDS = 1.0
# How soon PostgreSQL ends the session of a beat whose host died. One that works asks more often than that.
SESSION_SECONDS = 30
# A lock that a session takes twice has to be given back twice: it is taken only where it is not held.
_TAKE = """
    SELECT EXISTS (
        SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = pg_backend_pid()
            AND (classid::bigint << 32) | objid::bigint = %(key)s::bigint
    ) OR pg_try_advisory_lock(%(key)s::bigint), set_config('idle_session_timeout', %(seconds)s, false)
"""
ANOTHER = "another beat works, and this one follows it when it ends"


class OneBeat(PersistentScheduler):
    """Sends what is due while no other beat does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._told = Told()
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, and return how many seconds may pass until the next tick."""
        if why_not := _why_not():
            if self._told.is_news(why_not):
                log.warning("beat_stands_by", reason=why_not)
            return STAND_BY_SECONDS
        if self._told.is_news(""):
            log.info("beat_works")
        return min(float(super().tick(*args, **kwargs)), SESSION_SECONDS / 3)


def _why_not() -> str:
    """Return why this process must not work, or nothing where the lock is its own."""
    try:
        [(is_ours, _)] = fetch(_TAKE, {"key": KEY, "seconds": f"{SESSION_SECONDS}s"})
    except (OperationalError, InterfaceError) as error:
        connection.close()
        return reason(error)
    return "" if is_ours else ANOTHER
