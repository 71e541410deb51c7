"""Windows: the stretches of time to read from a store next. Pure: times in, times out.

A store orders messages by their sender's timestamp, not by arrival, so there is no place in it behind which everything
is new. What is certain is only that a message is stored within seconds of being sent, and with a timestamp at most 20 s
away from the store's clock; or up to an hour late, when another store hands it over. So the past is read again, in
tiers, and everything is known by its hash:

    tier    timestamps                     when                         reads each message
    fresh   since the last pass            every pass, 3 s after        once
    urgent  since the last good live read  at once, when one failed     only then
    settle  a minute around a doubt        a minute after it            only then
    late    65 minutes ago                 every ten minutes            once; the whole 75 minutes where it was late

A doubt is whatever says that a message may have come to us on no path yet: a live read that failed, a full cache, a
message that only the store had, an outage of the store. A store was late when it failed, or when something was in it
that had not been there a minute before. All times are aware, by the clock of our database.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

# 20 s that a sender's clock may be behind, 20 s that the store's own may be wrong, 20 s that its handlers may take.
OVERLAP = timedelta(seconds=60)
# A sender's clock may be ahead by 20 s, and our own be behind.
AHEAD = timedelta(seconds=25)
# Propagation and insertion take time, so what was sent just now may not be in the store yet.
SETTLE = timedelta(seconds=3)
# What a live read has lost was sent at most this long before the read before it, apart from clocks; see OVERLAP.
URGENT_OVERLAP = timedelta(seconds=2)
# How often what is in doubt is read again; the watermark may be ahead of it by a minute and this.
SETTLE_PERIOD = timedelta(seconds=15)
AFRESH = OVERLAP + 2 * SETTLE_PERIOD
# How much of the past one pass catches up with at once. The rest waits, so that what is new is served meanwhile.
REACH = timedelta(seconds=180)
# Stores hand each other what they missed for up to an hour (store-sync), with old timestamps.
LATE_PERIOD = timedelta(minutes=10)
LATE_AGE = timedelta(minutes=65)
LATE_REACH = LATE_AGE + LATE_PERIOD
LATE_UNTIL = timedelta(minutes=1)
SLICE = timedelta(seconds=60)
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
        """Return the end of the last microsecond, so that windows that touch leave nothing out between them."""
        return _nanoseconds(self.end_at) + 999

    def hull(self, other: "Window | None") -> "Window":
        """Return the smallest window that covers both."""
        if other is None:
            return self
        return Window(min(self.start_at, other.start_at), max(self.end_at, other.end_at))

    def after(self, other: "Window") -> "Window | None":
        """Return what is left of this window once everything up to the end of the other one was read."""
        start_at = max(self.start_at, other.end_at + MICROSECOND)
        return Window(start_at, self.end_at) if start_at <= self.end_at else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The windows of one pass. ``fresh`` is read at once and whole, ``missed`` and ``late`` afterwards, page by page.

    Up to ``watermark_at`` all is known once ``fresh`` is read and ``missed`` is noted. ``unrecoverable`` is how much
    was missed that is too old to ask for.
    """

    fresh: Window
    watermark_at: datetime
    missed: Window | None = None
    late: Window | None = None
    unrecoverable: timedelta = timedelta()


def plan(
    *,
    watermark_at: datetime,
    late_searched_at: datetime,
    now: datetime,
    recovery: timedelta,
    is_first: bool = False,
    is_late: bool = False,
) -> Plan:
    """Return what the next pass over a store has to read. ``recovery`` is how far back an outage is caught up with.

    The first pass of a reader goes back to where doubts of the reader before it may have been. ``is_late`` tells that
    the store was late within the time that is searched for late messages.
    """
    end_at = now - SETTLE
    if watermark_at > now + OVERLAP:
        # While the clock was ahead, what was read was the future, nobody knows for how long.
        begin = now - recovery
    elif is_first or watermark_at > now:
        begin = min(watermark_at, now) - AFRESH
    else:
        begin = min(watermark_at + MICROSECOND, end_at)
    fresh = Window(max(begin, now - REACH), end_at)
    missed = Window(max(begin, now - recovery), fresh.start_at) if begin < fresh.start_at else None
    return Plan(
        fresh=fresh,
        watermark_at=end_at,
        missed=missed,
        late=_late(late_searched_at, now, is_late=is_late or missed is not None),
        unrecoverable=max(now - recovery - begin, timedelta()),
    )


def _late(searched_at: datetime, now: datetime, *, is_late: bool) -> Window | None:
    """Return everything that a store may have got late, or, as long as it was not, what was not read late yet and will
    not come any more.
    """
    since = now - searched_at
    if timedelta() <= since < LATE_PERIOD:
        return None
    if is_late or not timedelta() <= since <= LATE_REACH:
        return Window(now - LATE_REACH, now - LATE_UNTIL)
    return Window(searched_at - LATE_AGE + MICROSECOND, now - LATE_AGE)


def urgent(*, lost_since: datetime, now: datetime) -> Window:
    """Return where to look at once for what a live read may have drained whose answer never came."""
    return Window(max(lost_since - URGENT_OVERLAP, now - REACH), now + AHEAD)


def suspect(*, since: datetime, now: datetime) -> Window:
    """Return the timestamps of messages that came, or should have come, since then."""
    return Window(since - OVERLAP, now + AHEAD)


def settled(doubtful: Window, *, now: datetime) -> Window | None:
    """Return the part of a doubt that can be read for the last time: whatever is stored in time is stored by now."""
    end_at = min(doubtful.end_at, now - OVERLAP)
    return Window(doubtful.start_at, end_at) if doubtful.start_at <= end_at else None


def newest_slice(window: Window) -> Window:
    """Return what to read of a window first: fresh messages are worth more than old ones."""
    return Window(max(window.start_at, window.end_at - SLICE), window.end_at)


def rest(window: Window) -> Window | None:
    """Return what is left of a window once its newest slice was read."""
    end_at = newest_slice(window).start_at - MICROSECOND
    return Window(window.start_at, end_at) if end_at >= window.start_at else None


def searched_until(watermark_at: datetime, missed: Iterable[Window]) -> datetime:
    """Return up to when nothing is missing: the watermark, or the beginning of what is still to be caught up with."""
    return min([watermark_at, *(window.start_at for window in missed)])


def _nanoseconds(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND * 1000
