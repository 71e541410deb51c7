"""What became of pushes over an hour, a day or a week, and how long they waited for the gateway.

The waits of each minute are a histogram: its buckets grow by a factor, so that histograms can be added, and a
percentile of their sum is wrong by half a bucket at most.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import LiteralString, NamedTuple

from django.utils import timezone

from kit.db.base import fetch
from notifications.models import Notification
from pushserver.console.health.recent import Recent
from pushserver.console.models import Count

State = Notification.State
Figure = Count.Figure
# Buckets for each doubling of a time, so that the limits of a bucket are 19 % apart.
BUCKETS_PER_DOUBLING = 4
BUCKET: LiteralString = f"floor(ln(greatest(waited_ms, 1)::float8) / ln(2::float8) * {BUCKETS_PER_DOUBLING})::integer"
FAILED = (State.DEAD_TOKEN, State.UNDELIVERABLE, State.UNCONFIRMED, State.EXPIRED)
_READ: LiteralString = f"""
    SELECT date_bin(%(step)s::interval, begin_at, %(begin)s::timestamptz), figure, outcome, code,
        CASE WHEN figure IN ('{Figure.WAITING}', '{Figure.HOUR_WAITING}') THEN max(count) ELSE sum(count) END
    FROM pushserver_count
    WHERE figure = ANY(%(figures)s) AND begin_at >= %(begin)s AND begin_at < %(end)s
    GROUP BY 1, 2, 3, 4
"""


class Period(NamedTuple):
    """What a chart shows at once. A week is read from the sums of hours."""

    name: str
    length: timedelta
    step: timedelta
    ends: Figure = Figure.ENDS
    waits: Figure = Figure.WAITS
    waiting: Figure = Figure.WAITING


PERIODS = (
    Period("1 h", timedelta(hours=1), timedelta(minutes=1)),
    Period("24 h", timedelta(days=1), timedelta(minutes=15)),
    Period("7 d", timedelta(days=7), timedelta(hours=1), Figure.HOUR_ENDS, Figure.HOUR_WAITS, Figure.HOUR_WAITING),
)


@dataclass(frozen=True, slots=True)
class Trend:
    """The steps of a period, oldest first. A step that was not counted has no ``ends``."""

    period: Period
    begins_at: Sequence[datetime]
    ends: Mapping[datetime, Counter[str]]
    waits: Mapping[datetime, Counter[int]]
    waiting_at: Mapping[datetime, int]

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Return the beginning of the first step and the end of the last."""
        return self.begins_at[0], self.begins_at[-1] + self.period.step

    def ended(self, *states: str) -> list[float | None]:
        """Return how many notifications ended in these states in each step, and None where that is unknown."""
        return [sum(self.ends[at][state] for state in states) if at in self.ends else None for at in self.begins_at]

    def waiting(self) -> list[float | None]:
        """Return the most notifications that waited at once in each step, and None where that is unknown."""
        return [self.waiting_at.get(at) for at in self.begins_at]

    def wait(self, share: float) -> list[float | None]:
        """Return within how many milliseconds this share of the pushes of each step left for the gateway."""
        return [percentile(self.waits.get(at, {}), share) for at in self.begins_at]

    def wait_of_all(self, share: float) -> float | None:
        """Return within how many milliseconds this share of all pushes of the period left for the gateway."""
        return percentile(sum(self.waits.values(), Counter()), share)


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the middle of the bucket that has this percentile, or None without a value."""
    left = ceil(sum(histogram.values()) * share)
    for bucket in sorted(histogram):
        left -= histogram[bucket]
        if left <= 0:
            return float(2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING))
    return None


def read_trend(period: Period, now: datetime) -> Trend:
    """Read the whole steps of a period until now, in one query."""
    since_epoch = now - datetime(1970, 1, 1, tzinfo=UTC)
    end = now - since_epoch % period.step
    begin = end - period.length
    begins_at = [begin + number * period.step for number in range(period.length // period.step)]
    ends: dict[datetime, Counter[str]] = {}
    waits: dict[datetime, Counter[int]] = {}
    waiting = {}
    figures = [period.ends, period.waits, period.waiting]
    found = fetch(_READ, {"step": period.step, "begin": begin, "end": end, "figures": figures})
    for at, figure, outcome, code, count in found:
        if figure == period.ends:
            ends.setdefault(at, Counter())[outcome] = int(count)
        elif figure == period.waits:
            waits.setdefault(at, Counter())[int(code)] = int(count)
        else:
            waiting[at] = int(count)
    return Trend(period, begins_at, ends, waits, waiting)


def _now(period: Period) -> Trend:
    return read_trend(period, timezone.now())


# Every open first page asks for a period every two seconds, and that of a day has a row for each bucket of each minute.
KEPT_SECONDS = 15.0
RECENT = {period: Recent(partial(_now, period), lambda: KEPT_SECONDS) for period in PERIODS}
