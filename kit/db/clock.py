"""The database's clock: what one process writes (a lease, a pause, a deadline) another one compares with the time.

A machine whose own clock jumps must not take the pushes of others for lost, or hold its own for hours. So the time of a
batch is that of the database, asked once in a while and carried on by the monotonic clock of the process.
Replies are dated by it as well: stores refuse what is 20 seconds off.
"""

from datetime import datetime, timedelta
from time import monotonic
from typing import cast

from django.utils import timezone

from kit.db.statements import fetch


class Clock:
    """The time as the database has it. Any thread may ask."""

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None

    def set(self, now: datetime) -> None:
        """Take over what the database has just said."""
        self._known = (now, monotonic())

    def now(self) -> datetime:
        """Return the time of the database, or of this machine while the database was not asked."""
        if self._known is None:
            return timezone.now()
        then, at = self._known
        return then + timedelta(seconds=monotonic() - at)

    def now_ns(self) -> int:
        """Return the same as messages are dated: nanoseconds of Unix time, exact to the microsecond."""
        return round(self.now().timestamp() * 10**6) * 1000


clock = Clock()


def database_now() -> datetime:
    """Return the time of the database, asked now: what deletes, expires or closes a day goes by no other clock."""
    [(now,)] = fetch("SELECT clock_timestamp()")
    return cast("datetime", now)
