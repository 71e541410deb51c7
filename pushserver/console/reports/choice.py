"""The days and filters of a page. The module reads no request, because mails use the same tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from pushserver.console.toolkit.related import Link
from spark_reports.jobs.tables import USUAL_DAYS
from spark_reports.models import PublishedDay, Report
from spark_reports.nights.nights import published_days

RANGES = {"1 day": 1, "7 days": 7, "14 days": 14, "30 days": 30, "90 days": 90}
USUAL = timedelta(days=USUAL_DAYS)


@dataclass(frozen=True, slots=True)
class Choice:
    """A range of days and filters. ``nights`` are its days with reports, newest first, with ``is_stale``."""

    first: date
    last: date
    nights: Sequence[Any]
    filters: Mapping[str, str]
    oldest: date | None  # the first day that ever had reports

    @property
    def published(self) -> frozenset[date]:
        return frozenset(night.day for night in self.nights)

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    @property
    def absent(self) -> list[date]:
        """The days without reports since the first day that ever had reports."""
        missed = set(self.days) - self.published
        return sorted(day for day in missed if self.oldest and day > self.oldest)

    @property
    def stale(self) -> list[str]:
        return [str(night.day) for night in reversed(self.nights) if night.is_stale]

    def rows(self, model: type[Report]) -> QuerySet[Any]:
        return self._between(model, self.first, self.last)

    def rows_of_last_day(self, model: type[Report]) -> QuerySet[Any]:
        return self._between(model, self.last_day, self.last_day)

    def week_before(self, model: type[Report]) -> QuerySet[Any]:
        """Return the rows of the seven days before the last one."""
        return self._between(model, self.last_day - USUAL, self.last_day - timedelta(days=1))

    @property
    def days_of_week_before(self) -> int:
        """The number of those seven days that have reports, also reports without rows."""
        return published_days(self.last_day - USUAL, self.last_day - timedelta(days=1)).count()

    def _between(self, model: type[Report], first: date, last: date) -> QuerySet[Any]:
        return model._default_manager.filter(day__range=(first, last), **self.filters)  # noqa: SLF001

    @property
    def last_day(self) -> date:
        """The newest day of the range that has reports."""
        return max(self.published, default=self.last)

    @property
    def query(self) -> str:
        return urlencode({"from": self.first, "to": self.last, **self.filters})

    @property
    def ranges(self) -> Iterator[Link]:
        """Yield links to other ranges that end on the same day, and to the days before and after."""
        length, last = len(self.days), self.last.toordinal()
        ends = {text: (days, last) for text, days in RANGES.items()}
        for text, (days, end) in {"earlier": (length, last - length), **ends, "later": (length, last + length)}.items():
            if days <= end <= date.max.toordinal():
                dates = {"from": date.fromordinal(end - days + 1), "to": date.fromordinal(end)}
                yield Link(text, f"?{urlencode({**dates, **self.filters})}")


def choose(first: date, last: date, filters: Mapping[str, str] | None = None) -> Choice:
    """Return the choice of a range of days, with the filters of a page."""
    oldest = PublishedDay.objects.order_by("day").values_list("day", flat=True).first()
    return Choice(first, last, list(published_days(first, last).order_by("-day")), filters or {}, oldest)


def newest_day(today: date) -> date:
    """Return the newest day with reports, or yesterday when there is none."""
    newest = PublishedDay.objects.order_by("-day").values_list("day", flat=True).first()
    return newest or today - timedelta(days=1)
