"""The clock of the database, which all processes share. Batches and replies take their time from it.

One process writes a time (a lease, a pause, a deadline), and another one compares it with its own. A machine whose
clock jumps must not treat the pushes of other processes as lost, or delay its own for hours. So each process reads the
time of the database now and then, and continues it with its monotonic clock. Replies need it too, because stores
refuse messages that are dated 20 seconds off.
"""

from datetime import datetime, timedelta
from time import monotonic
from typing import cast

from django.utils import timezone

from kit.db.statements import fetch


class Clock:
    """The time of the database. Any thread may read it."""

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None

    def set(self, now: datetime) -> None:
        """Set the clock to a time that was just read from the database."""
        self._known = (now, monotonic())

    def now(self) -> datetime:
        """Return the time of the database, or of this machine before `set` was called."""
        if self._known is None:
            return timezone.now()
        then, at = self._known
        return then + timedelta(seconds=monotonic() - at)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since 1970, as messages are dated. It is exact to the microsecond."""
        return round(self.now().timestamp() * 10**6) * 1000


clock = Clock()


def database_now() -> datetime:
    """Read the time from the database. Code that deletes or expires rows, or closes a day, uses no other clock."""
    [(now,)] = fetch("SELECT clock_timestamp()")
    return cast("datetime", now)
