"""The clock of the database, which all processes share. Batches and replies take their time from it.

One process writes a time (a lease, a pause, a deadline), and another one compares it with its own. A machine whose
clock jumps must not treat the pushes of other processes as lost, or delay its own for hours. So each process reads the
time of the database now and then, and continues it with its monotonic clock. Replies need it too, because stores
refuse messages that are dated 20 seconds off.

The database's own clock may leap, too, and everything that waits would expire. So a process that ran before does not
follow a leap ahead that its machine's clock did not make (docs/decisions/0141).

Also here: the UTC days to which rows belong by their times (`kit.db.partitions`).
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from time import monotonic
from typing import LiteralString, cast

import structlog
from django.utils import timezone

from kit.db.base import fetch

log = structlog.get_logger(__name__)

MAX_LEAP = timedelta(hours=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
# For this long a copy of an envelope, or of a request that notified nobody, is recognised.
RECENT = timedelta(days=3)


class Clock:
    """The time of the database. Any thread may read it."""

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None
        self._has_leapt = False

    def set(self, read: datetime) -> datetime:
        """Set the clock to a time that was just read from the database. Return the time that it has now."""
        now = self.now() if self._leaps(read) else read
        self._known = (now, monotonic())
        return now

    def _leaps(self, read: datetime) -> bool:
        """Return whether the database's clock has leapt ahead of ours and of this machine's, which agree."""
        expected = self.now()
        has_leapt = read - expected > MAX_LEAP and self._known is not None
        has_leapt = has_leapt and abs(timezone.now() - expected) <= MAX_LEAP
        if has_leapt != self._has_leapt:
            seconds = round((read - expected).total_seconds())
            log.error("database_clock_leapt" if has_leapt else "database_clock_is_back", seconds_ahead=seconds)
        self._has_leapt = has_leapt
        return has_leapt

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
    return clock.set(cast("datetime", now))


def day_of(at: datetime) -> date:
    """Return the UTC day of a time, in whose partition a row belongs that ended then."""
    return at.astimezone(UTC).date()


def with_days(sql: LiteralString, now: datetime) -> LiteralString:
    """Return a statement with ``{days}`` replaced by the days on which the rows that it needs may have ended, and
    ``{since}`` and ``{until}`` by the times between which rows of the last `RECENT` days came.

    The days are yesterday, today, and also tomorrow, for a clock that is set back. They are literals, because with a
    parameter PostgreSQL would plan the statement each time.
    """
    today = day_of(now)
    days = ", ".join(f"'{today + number * DAY}'" for number in (-1, 0, 1))
    since, until = (f"'{today + number * DAY} 00:00+00'" for number in (-RECENT.days, 2))
    return sql.replace("{days}", days).replace("{since}", since).replace("{until}", until)


def first_day(received: Iterable[datetime]) -> date:
    """Return the first day on which a row of requests with these times of receipt may have ended."""
    return day_of(min(received) - DAY)  # the clock may have been set back
