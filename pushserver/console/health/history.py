"""Reader of what `traffic` has counted, in a few queries over small rows.

`Counts` are the steps of any period, for charts and incidents. `Hour` is the last hour with all that pages and
indicators need.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import LiteralString, NamedTuple

from django.db.models import Q, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils import timezone

from kit.db.base import fetch
from notifications.messages import Outcome
from notifications.models import BeyondLimit, Notification
from pushserver.console.health import traffic
from pushserver.console.health.recent import Recent
from pushserver.console.health.traffic import BUCKETS_PER_DOUBLING, DAY, MINUTE, REQUESTS, SHOWN
from pushserver.console.models import Count, TrafficMinute

DELIVERED = Outcome.DELIVERED
State = Notification.State
FAILED = (State.DEAD_TOKEN, State.UNDELIVERABLE, State.UNCONFIRMED, State.EXPIRED)
Figure = Count.Figure
# Figures by those of their sums by the hour.
OF_HOURS = {
    Figure.HOUR_ENDS: Figure.ENDS,
    Figure.HOUR_WAITS: Figure.WAITS,
    Figure.HOUR_WAITING: Figure.WAITING,
    Figure.HOUR: Figure.REQUESTS,
}
# A minute is counted some seconds after its end, so at most the two newest minutes may be missing.
NOT_YET_COUNTED = timedelta(minutes=2)
# At most this many steps in the chart of an incident, and this much before and after it.
MAX_STEPS = 120
AROUND = timedelta(minutes=15)
_READ: LiteralString = f"""
    SELECT date_bin(%(step)s::interval, begin_at, %(begin)s::timestamptz), figure, subject, outcome, code,
        CASE WHEN figure IN ('{Figure.WAITING}', '{Figure.HOUR_WAITING}') THEN max(count) ELSE sum(count) END
    FROM pushserver_count
    WHERE figure = ANY(%(figures)s) AND begin_at >= %(begin)s AND begin_at < %(end)s
        AND (figure <> '{Figure.HOUR}' OR starts_with(subject, '{REQUESTS}'))
    GROUP BY 1, 2, 3, 4, 5
"""


class Key(NamedTuple):
    """What was counted: a bridge or an app, and of attempts and notifications the outcome and the code."""

    subject: str
    outcome: str
    code: str


class Period(NamedTuple):
    """What a chart shows at once, from the counts of minutes or from their sums by the hour."""

    name: str
    length: timedelta
    step: timedelta
    is_by_hour: bool = False


PERIODS = (
    Period("1 h", timedelta(hours=1), MINUTE),
    Period("24 h", DAY, timedelta(minutes=15)),
    Period("7 d", timedelta(days=7), timedelta(hours=1), is_by_hour=True),
)
HOUR = PERIODS[0]


def period_of(begin: datetime, end: datetime, now: datetime) -> Period:
    """Return a period until ``end`` that shows what was before and meanwhile. Minutes are kept for a day."""
    length = max(end - begin, AROUND) + AROUND
    if end - length < now - DAY:
        return Period("", SHOWN * max(2, ceil(length / SHOWN) + 1), SHOWN, is_by_hour=True)
    step = MINUTE * ceil(length / (MINUTE * MAX_STEPS))
    return Period("", step * ceil(length / step), step)


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of each step of a period, oldest first. A step that is not ``known`` was not counted."""

    period: Period
    begins_at: Sequence[datetime]
    known: Collection[datetime] = ()
    of: Mapping[tuple[Figure, datetime], Counter[Key]] = field(default_factory=dict)

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Return the beginning of the first step and the end of the last."""
        return self.begins_at[0], self.begins_at[-1] + self.period.step

    def column(self, figure: Figure, is_meant: Callable[[Key], bool] = lambda _: True) -> list[float | None]:
        """Return for each step how many of a figure were counted, and None where that is unknown."""
        return [
            sum(number for key, number in self.at(figure, at).items() if is_meant(key)) if at in self.known else None
            for at in self.begins_at
        ]

    def at(self, figure: Figure, begin_at: datetime) -> Counter[Key]:
        return self.of.get((figure, begin_at), Counter())

    def total(self, figure: Figure) -> Counter[Key]:
        return sum((self.at(figure, at) for at in self.begins_at), Counter())

    def ended(self, *states: str) -> list[float | None]:
        """Return how many notifications ended in these states in each step."""
        return self.column(Figure.ENDS, lambda key: key.outcome in states)

    def requests(self, bridge: str = "") -> list[float | None]:
        """Return how many requests came in each step, by any or by one bridge."""
        return self.column(Figure.REQUESTS, lambda key: key.subject == (bridge or key.subject))

    def waiting(self) -> list[float | None]:
        """Return the most notifications that waited at once in each step, and None where that is unknown."""
        return [max(self.at(Figure.WAITING, at).values(), default=None) for at in self.begins_at]

    def wait(self, share: float) -> list[float | None]:
        """Return within how many milliseconds this share of the pushes of each step left for the gateway."""
        return [percentile(_histogram(self.at(Figure.WAITS, at)), share) for at in self.begins_at]

    def wait_of_all(self, share: float) -> float | None:
        """Return within how many milliseconds this share of all pushes of the period left for the gateway."""
        return percentile(_histogram(self.total(Figure.WAITS)), share)


def _histogram(waits: Counter[Key]) -> dict[int, int]:
    return {int(key.code): number for key, number in waits.items()}


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the middle of the bucket that has this percentile, or None without a value.

    Buckets grow by a factor, so a percentile of a sum of histograms is wrong by half a bucket at most.
    """
    left = ceil(sum(histogram.values()) * share)
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return float(2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING))
    return None


def read_counts(period: Period, now: datetime, *figures: Figure) -> Counts:
    """Read the whole steps of a period until now, in one query. Without figures, read those of charts."""
    since_epoch = now - datetime(1970, 1, 1, tzinfo=UTC)
    end = now - since_epoch % period.step
    begin = end - period.length
    asked = list(figures or OF_HOURS.values())
    if period.is_by_hour:
        asked = [sums for sums, own in OF_HOURS.items() if own in asked]
    of: dict[tuple[Figure, datetime], Counter[Key]] = {}
    found = fetch(_READ, {"step": period.step, "begin": begin, "end": end, "figures": asked})
    for at, name, subject, outcome, code, number in found:
        figure = OF_HOURS.get(name, Figure(name))
        of.setdefault((figure, at), Counter())[Key(subject.removeprefix(REQUESTS), outcome, code)] = int(number)
    begins_at = [begin + number * period.step for number in range(period.length // period.step)]
    return Counts(period, begins_at, {at for figure, at in of if figure == Figure.ENDS}, of)


def _now(period: Period) -> Counts:
    return read_counts(period, timezone.now())


# Every open first page asks for a period every two seconds, and that of a day has a row for each bucket of each minute.
KEPT_SECONDS = 15.0
RECENT = {period: Recent(partial(_now, period), lambda: KEPT_SECONDS) for period in PERIODS}


# The last hour --------------------------------------------------------------------------------------------------------
class BeyondFigures(NamedTuple):
    """The number of pushes with this effect of a limit in the last minute, hour and day."""

    effect: str
    limit: str
    minute: int
    hour: int
    day: int


@dataclass(frozen=True, slots=True)
class Hour:
    """The last hour, minute by minute. ``minutes`` has no entry for those that are not counted.

    ``yesterday`` is the same hour a day ago, or None if nothing was counted then. ``beyond`` counts the pushes beyond
    each limit, the most frequent first.
    """

    counts: Counts
    minutes: Mapping[datetime, TrafficMinute] = field(default_factory=dict)
    yesterday: Counts | None = None
    beyond: Sequence[BeyondFigures] = ()

    @property
    def counted_until(self) -> datetime | None:
        """Return the end of the newest minute that was counted."""
        return max(self.minutes) + MINUTE if self.minutes else None

    def column(self, name: str) -> list[float | None]:
        """Return one figure of `TrafficMinute` for each minute, and None where it is unknown."""
        return [getattr(self.minutes.get(begin_at), name, None) for begin_at in self.counts.begins_at]

    def of_bridge(self, bridge: str) -> tuple[int, int]:
        """Return the number of requests of a bridge in the hour, and of replies that it sent."""
        requests, replies = (
            self.counts.total(figure)[Key(bridge, "", "")] for figure in (Figure.REQUESTS, Figure.REPLIES)
        )
        return requests, replies

    def newest(self, minutes: int) -> Counter[Key]:
        """Return the number of attempts by app, outcome and code in the newest ``minutes`` that were counted."""
        recent = self.counts.begins_at[-(minutes + NOT_YET_COUNTED // MINUTE) :]
        counted = [begin_at for begin_at in recent if begin_at in self.minutes][-minutes:]
        return sum((self.counts.at(Figure.ATTEMPTS, begin_at) for begin_at in counted), Counter())


def tries_of(counts: Counts) -> Counter[tuple[str, str]]:
    """Return the number of attempts by outcome and code."""
    total: Counter[tuple[str, str]] = Counter()
    for key, number in counts.total(Figure.ATTEMPTS).items():
        total[key.outcome, key.code] += number
    return total


def no_hour(now: datetime) -> Hour:
    """Return the last hour as it is known without the database."""
    return Hour(Counts(HOUR, traffic.minutes(now)))


def read_hour(now: datetime) -> Hour:
    """Read the sixty minutes before this one."""
    figures = (Figure.ATTEMPTS, Figure.REQUESTS, Figure.REPLIES, Figure.ENDS)
    before = read_counts(HOUR, now - DAY, Figure.ATTEMPTS, Figure.ENDS)
    was_counted = TrafficMinute.objects.filter(begin_at__range=(before.begins_at[0], before.begins_at[-1])).exists()
    read = read_counts(HOUR, now, *figures)
    minutes = TrafficMinute.objects.in_bulk(read.begins_at)
    counts = Counts(HOUR, read.begins_at, minutes, read.of)
    return Hour(counts, minutes, before if was_counted else None, _beyond(now))


def _beyond(now: datetime) -> list[BeyondFigures]:
    """Return the pushes beyond each limit. The minute before each period counts in it, as far as it overlaps."""

    def within(period: timedelta) -> Combinable:
        return Coalesce(Sum("count", filter=Q(begin_at__gt=now - period - MINUTE)), 0)

    of_all = BeyondLimit.objects.filter(recipient=b"", installation_id="", begin_at__gt=now - DAY)
    rows = of_all.values_list("effect", "push_limit").annotate(
        minute=within(MINUTE), hour=within(SHOWN), day=Sum("count")
    )
    return [BeyondFigures(*row) for row in rows.order_by("-day", "effect", "push_limit")]
