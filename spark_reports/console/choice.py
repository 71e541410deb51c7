"""What a page is asked for: a range of days, and filters. Whatever a URL says, something sensible comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from registrations.console.links import Link
from spark_reports.models import PublishedDay, Report

DEFAULT_DAYS = 14
MAX_DAYS = 92
RANGES = {"1 day": 1, "7 days": 7, "14 days": 14, "30 days": 30, "90 days": 90}
LABELS = {"platform": "Platform", "app_topic": "App topic", "stage": "Stage"}
MAX_TEXT = 200


def date_widget() -> UnfoldAdminTextInputWidget:
    """The browser's own day picker: it needs no script of ours."""
    return UnfoldAdminTextInputWidget(attrs={"type": "date"})


class DaysForm(forms.Form):
    """``from`` and ``to``, both included; either may be left out."""

    # Django takes fields with names that Python keeps for itself from here only.
    days: ClassVar[Sequence[str]] = ("from", "to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.days:
            self.fields[name] = forms.DateField(label=name.capitalize(), required=False, widget=date_widget())

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        first, last = cleaned.get("from"), cleaned.get("to")
        if first and last and first > last:
            raise ValidationError("The first day is after the last.")
        if first and last and (last - first).days >= MAX_DAYS:
            raise ValidationError(f"At once there are {MAX_DAYS} days at most.")
        return cleaned


class ChoiceForm(DaysForm):
    """Days, and one of the values that a report has for each of its filters."""

    def __init__(self, data: QueryDict, filters: dict[str, list[str]]) -> None:
        sent_by_name = {name: data.get(name, "")[:MAX_TEXT].replace("\x00", "") for name in filters}
        super().__init__({**data.dict(), **sent_by_name})
        for name, values in filters.items():
            sent = sent_by_name[name]
            known = sorted({*values, *([sent] if sent else [])} - {""})
            choices = [("", "all"), *[(value, value) for value in known]]
            self.fields[name] = forms.ChoiceField(
                label=LABELS[name], choices=choices, required=False, widget=UnfoldAdminSelectWidget()
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """The days of a page, oldest first, which of them have reports, and the filters that are set."""

    form: ChoiceForm
    first: date
    last: date
    published: frozenset[date]
    filters: dict[str, str]

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]

    @property
    def absent(self) -> list[date]:
        return [day for day in self.days if day not in self.published]

    def rows(self, model: type[Report]) -> QuerySet[Any]:
        return model._default_manager.filter(day__range=(self.first, self.last), **self.filters)  # noqa: SLF001

    def rows_of_last_day(self, model: type[Report]) -> QuerySet[Any]:
        return model._default_manager.filter(day=self.last_day, **self.filters)  # noqa: SLF001

    @property
    def last_day(self) -> date:
        """The newest in the range that has reports."""
        return max(self.published, default=self.last)

    @property
    def query(self) -> str:
        return urlencode({"from": self.first, "to": self.last, **self.filters})

    @property
    def ranges(self) -> list[Link]:
        """Quick ways to other ranges that end on the same day, and to the days before and after."""
        length, last = len(self.days), self.last.toordinal()
        targets = [("earlier", length, last - length), *[(text, days, last) for text, days in RANGES.items()]]
        targets.append(("later", length, last + length))
        return [self._link(*target) for target in targets if target[1] <= target[2] <= date.max.toordinal()]

    def _link(self, text: str, length: int, last: int) -> Link:
        days = {"from": date.fromordinal(last - length + 1), "to": date.fromordinal(last)}
        return Link(text, f"?{urlencode(days | self.filters)}")


def read_choice(request: HttpRequest, model: type[Report], names: Sequence[str], *, today: date) -> Choice:
    first, last = _days(request, today)
    in_range = model._default_manager.filter(day__range=(first, last))  # noqa: SLF001
    form = ChoiceForm(request.GET, {name: _values(in_range, name) for name in names})
    form.is_valid()
    filters = {name: form.cleaned_data[name] for name in names if form.cleaned_data.get(name)}
    published = PublishedDay.objects.filter(day__range=(first, last)).values_list("day", flat=True)
    for name, day in (("from", first), ("to", last)):
        form.fields[name].widget.attrs["value"] = day.isoformat()
    return Choice(form, first, last, frozenset(published), filters)


def newest_day(today: date) -> date:
    """The last day with reports; without any, yesterday."""
    newest = PublishedDay.objects.order_by("-day").values_list("day", flat=True).first()
    return newest or today - timedelta(days=1)


def _days(request: HttpRequest, today: date) -> tuple[date, date]:
    """The range that was asked for. A wrong one is told by the form, and the default is shown."""
    form = DaysForm(request.GET)
    form.is_valid()
    asked = {} if form.non_field_errors() else form.cleaned_data
    last = asked.get("to") or (asked.get("from") and _capped(asked["from"], today)) or newest_day(today)
    first = asked.get("from") or date.fromordinal(max(1, last.toordinal() - DEFAULT_DAYS + 1))
    return first, last


def _capped(first: date, today: date) -> date:
    longest = date.fromordinal(min(first.toordinal() + MAX_DAYS - 1, date.max.toordinal()))
    return max(first, min(newest_day(today), longest))


def _values(rows: QuerySet[Any], name: str) -> list[str]:
    return list(rows.order_by().values_list(name, flat=True).distinct())
