"""Which stretch of time to read from a store next. Pure: times in, times out.

A store orders messages by their sender's timestamp, not by arrival, so there is no place in it behind which everything
is new. What is certain is only that a message is stored within seconds of being sent, and with a timestamp at most 20 s
away from the store's clock. So every pass reads some of the past again, and everything is known by its hash.

All times are aware, by the clock of our database.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

# 20 s that a sender's clock may be behind, 20 s that the store's own may be wrong, 20 s that its handlers may take.
OVERLAP = timedelta(seconds=60)
# A sender's clock may be ahead by 20 s, and our own be behind.
AHEAD = timedelta(seconds=25)
# Propagation and insertion: what was sent just now may not be in the store yet.
SETTLE = timedelta(seconds=5)
# How much of the past one pass catches up with at once. The rest waits, so that what is new is served meanwhile.
REACH = timedelta(seconds=120)
# Stores hand each other what they missed for up to an hour (store-sync), with old timestamps.
LATE_PERIOD = timedelta(minutes=10)
LATE_REACH = timedelta(minutes=75)
LATE_UNTIL = timedelta(minutes=1)
SLICE = timedelta(seconds=60)
NANOSECONDS = 10**9
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Window:
    """From ``start_at`` to ``end_at``, both included."""

    start_at: datetime
    end_at: datetime

    @property
    def start_ns(self) -> int:
        return _nanoseconds(self.start_at)

    @property
    def end_ns(self) -> int:
        """Up to the next microsecond: windows that touch leave nothing out between them."""
        return _nanoseconds(self.end_at) + 999

    def covers(self, other: "Window") -> bool:
        return self.start_at <= other.start_at and other.end_at <= self.end_at


@dataclass(frozen=True, slots=True)
class Plan:
    """``fresh`` is read at once and whole, ``missed`` and ``late`` little by little and afterwards.

    ``watermark_at`` is up to when all is known once ``fresh`` is read and ``missed`` is noted. ``unrecoverable`` is how
    much was missed that is too old to ask for.
    """

    fresh: Window
    watermark_at: datetime
    missed: Window | None = None
    late: Window | None = None
    unrecoverable: timedelta = timedelta()


def plan(*, watermark_at: datetime, late_searched_at: datetime, now: datetime, recovery: timedelta) -> Plan:
    """What the next pass over a store has to read. ``recovery`` is how far back an outage is caught up with."""
    begin = min(watermark_at, now) - OVERLAP  # a watermark in the future means that a clock was put right
    fresh = Window(max(begin, now - REACH), now + AHEAD)
    oldest = now - recovery
    is_late_due = now - late_searched_at >= LATE_PERIOD
    return Plan(
        fresh=fresh,
        watermark_at=now - SETTLE,
        missed=Window(max(begin, oldest), fresh.start_at) if begin < fresh.start_at else None,
        late=Window(now - LATE_REACH, now - LATE_UNTIL) if is_late_due else None,
        unrecoverable=max(oldest - begin, timedelta()),
    )


def lost_reply(*, last_read_at: datetime, now: datetime) -> Window:
    """Where to look for what a read may have drained whose answer never came."""
    return Window(last_read_at - OVERLAP, now + AHEAD)


def newest_slice(window: Window) -> Window:
    """What to read of a window first: fresh messages are worth more than old ones."""
    return Window(max(window.start_at, window.end_at - SLICE), window.end_at)


def rest(window: Window) -> Window | None:
    """What is left of it once the newest slice was read."""
    end_at = newest_slice(window).start_at
    return Window(window.start_at, end_at) if end_at > window.start_at else None


def searched_until(watermark_at: datetime, missed: Iterable[Window]) -> datetime:
    """Up to when nothing is missing: the watermark, or the beginning of what is still to be caught up with."""
    return min([watermark_at, *(window.start_at for window in missed)])


def _nanoseconds(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND * 1000
