"""The days and filters of a page. The module reads no request, because mails use the same tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import QuerySet

from pushserver.console.toolkit.related import Link
from spark_reports.models import PublishedDay, Report

RANGES = {"1 day": 1, "7 days": 7, "14 days": 14, "30 days": 30, "90 days": 90}


@dataclass(frozen=True, slots=True)
class Choice:
    """The days of a page and its filters. ``nights`` are the days with reports, newest first, with ``is_stale``."""

    form: forms.Form
    first: date
    last: date
    nights: Sequence[Any]
    filters: dict[str, str]
    oldest: date | None = None  # the first day that ever had reports

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
        return model._default_manager.filter(day__range=(self.first, self.last), **self.filters)  # noqa: SLF001

    def rows_of_last_day(self, model: type[Report]) -> QuerySet[Any]:
        return model._default_manager.filter(day=self.last_day, **self.filters)  # noqa: SLF001

    @property
    def last_day(self) -> date:
        """The newest day of the range that has reports."""
        return max(self.published, default=self.last)

    @property
    def query(self) -> str:
        return urlencode({"from": self.first, "to": self.last, **self.filters})

    @property
    def ranges(self) -> list[Link]:
        """Links to other ranges that end on the same day, and to the days before and after."""
        length = len(self.days)
        last = self.last.toordinal()
        targets = [("earlier", length, last - length), *[(text, days, last) for text, days in RANGES.items()]]
        targets.append(("later", length, last + length))
        newest = date.max.toordinal()
        return [self._link(text, length, last) for text, length, last in targets if length <= last <= newest]

    def _link(self, text: str, length: int, last: int) -> Link:
        days = {"from": date.fromordinal(last - length + 1), "to": date.fromordinal(last)}
        return Link(text, f"?{urlencode(days | self.filters)}")


def newest_day(today: date) -> date:
    """Return the newest day with reports, or yesterday when there is none."""
    newest = PublishedDay.objects.order_by("-day").values_list("day", flat=True).first()
    return newest or today - timedelta(days=1)
