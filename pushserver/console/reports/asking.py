"""Reader of a page's request: a range of days, and filters.

A wrong value in a URL is no error: the form reports it, and the page shows a default.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, QueryDict
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from pushserver.console.reports.choice import Choice, choose, newest_day
from spark_reports.models import Report

DEFAULT_DAYS = 14
MAX_DAYS = 92
MAX_TEXT = 200


class DaysForm(forms.Form):
    """A range of days. ``from`` and ``to`` are included in it, and either may be left out."""

    # `from` is a keyword of Python, so these fields cannot be attributes of the class.
    days: ClassVar[Sequence[str]] = ("from", "to")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.days:
            day_picker = UnfoldAdminTextInputWidget(attrs={"type": "date"})  # the browser's own, without a script
            self.fields[name] = forms.DateField(required=False, widget=day_picker)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        first, last = cleaned.get("from"), cleaned.get("to")
        if first and last and first > last:
            raise ValidationError("The first day is after the last.")
        if first and last and (last - first).days >= MAX_DAYS:
            raise ValidationError(f"A page shows {MAX_DAYS} days at most.")
        return cleaned


class ChoiceForm(DaysForm):
    """A range of days, and one of the values that a report has for each of its filters."""

    def __init__(self, data: QueryDict, filters: dict[str, list[str]]) -> None:
        sent_by_name = {name: data.get(name, "")[:MAX_TEXT].replace("\x00", "") for name in filters}
        super().__init__({**data.dict(), **sent_by_name})
        for name, values in filters.items():
            sent = sent_by_name[name]
            known = sorted({*values, *([sent] if sent else [])} - {""})
            choices = [("", "all"), *[(value, value) for value in known]]
            self.fields[name] = forms.ChoiceField(choices=choices, required=False, widget=UnfoldAdminSelectWidget())


def read_choice(
    request: HttpRequest, model: type[Report], names: Sequence[str], *, today: date
) -> tuple[ChoiceForm, Choice]:
    """Read the days and filters of a request, with the values that ``model`` has in these days."""
    first, last = _days(request, today)
    in_range = model._default_manager.filter(day__range=(first, last))  # noqa: SLF001
    values = {name: list(in_range.order_by().values_list(name, flat=True).distinct()) for name in names}
    form = ChoiceForm(request.GET, values)
    form.is_valid()
    for name, day in (("from", first), ("to", last)):
        form.fields[name].widget.attrs["value"] = day.isoformat()
    filters = {name: form.cleaned_data[name] for name in names if form.cleaned_data.get(name)}
    return form, choose(first, last, filters)


def _days(request: HttpRequest, today: date) -> tuple[date, date]:
    """Return the requested range, or the default range for a wrong one, which the form reports."""
    form = DaysForm(request.GET)
    form.is_valid()
    asked = {} if form.non_field_errors() else form.cleaned_data
    last = asked.get("to") or (asked.get("from") and _capped(asked["from"], today)) or newest_day(today)
    first = asked.get("from") or date.fromordinal(max(1, last.toordinal() - DEFAULT_DAYS + 1))
    return first, last


def _capped(first: date, today: date) -> date:
    longest = date.fromordinal(min(first.toordinal() + MAX_DAYS - 1, date.max.toordinal()))
    return max(first, min(newest_day(today), longest))
