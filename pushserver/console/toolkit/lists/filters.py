"""Filters of lists that show the words of the code, and offer choices without a scan of a large table.

Rule: one filter is active at a time. Each has an index in the order of the list, and no index serves two filters.
"""

from collections.abc import Iterable
from copy import copy
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils import timezone

# A filter offers the values of this many newest rows: enough for every frequent value, and read in a few milliseconds.
RECENT_ROWS = 5_000
HOUR = "hour"
# A row is written at most this long before the time by which a filter with `since` selects it.
WRITTEN_BEFORE = timedelta(minutes=15)


class Alone:
    """A filter whose choices reset all other filters."""

    def choices(self, changelist: Any) -> Any:
        others = [name for spec in changelist.filter_specs if spec is not self for name in spec.expected_parameters()]
        # The next class in the order of resolution is a ListFilter.
        for choice in super().choices(changelist):  # type: ignore[misc]
            yield choice if choice["selected"] else {**choice, "query_string": _without(others, choice["query_string"])}


def _without(names: Iterable[str], query_string: str) -> str:
    query = QueryDict(query_string.removeprefix("?"), mutable=True)
    for name in names:
        query.pop(name, None)
    return f"?{query.urlencode()}"


class LabelFilter(Alone, admin.ChoicesFieldListFilter):
    """A filter over the choices of a field, shown by their labels."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """Return no rows for a value that is no choice. PostgreSQL might read the whole table to find none."""
        known = {str(value) for value, _ in self.field.flatchoices}
        asked: Any = self.used_parameters.get(self.lookup_kwarg, [])
        return super().queryset(request, queryset) if known.issuperset(asked) else queryset.none()


class OnlyFilter(admin.SimpleListFilter):
    """A filter with one choice, ``words``: the rows that meet ``condition``."""

    words = ""
    condition = Q()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("yes", self.words)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        return queryset.filter(self.condition) if self.value() else queryset


class WordFilter(LabelFilter):
    """A filter over the choices of a field, shown by their values instead of their labels."""

    def __init__(self, field: "Field[Any, Any]", *arguments: Any, **named_arguments: Any) -> None:
        named = copy(field)
        named.choices = [(value, str(value)) for value, _ in field.flatchoices]
        super().__init__(named, *arguments, **named_arguments)
        # The title names the table too: a registration and its route both have a state.
        self.title = str(self.field_path).replace("__", " ").replace("_", " ")


class DuringFilter(Alone, admin.SimpleListFilter):
    """A filter for the rows of a period, exact to the second.

    Pages that show a count link to it, so that the list has exactly the rows that were counted.
    """

    title = "time"
    parameter_name = "during"
    # The column with the time.
    field_name = ""
    # The indexed column with the time when the row was written, with which ids grow. It limits the scan of an index
    # that is ordered by id, and the partitions that are read.
    since = ""
    # The column with the UTC day by which the table is partitioned, so that other days are not read.
    days = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(HOUR, "the last hour"), *([(self.value() or "", self.value() or "")] if self._is_span() else [])]

    def _is_span(self) -> bool:
        return self.value() not in {None, HOUR}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        asked = self.value()
        if asked is None:
            return queryset
        now = timezone.now()
        span = (now - timedelta(hours=1), now) if asked == HOUR else read_span(asked)
        if span is None:
            return queryset.none()
        begin, end = span
        within = queryset.filter(**{f"{self.field_name}__gte": begin, f"{self.field_name}__lt": end})
        if self.days:
            return within.filter(**{f"{self.days}__range": (begin.date(), end.date())})
        return self._written(within, begin - WRITTEN_BEFORE, end) if self.since else within

    def _written(self, within: QuerySet[Any], earliest: datetime, end: datetime) -> QuerySet[Any]:
        written = {f"{self.since}__gte": earliest, f"{self.since}__lt": end}
        rows = within.model._default_manager.filter(**written).order_by(self.since)  # noqa: SLF001
        return within.filter(**written, pk__gte=rows.values_list("pk", flat=True).first() or 0)


def during(field: str, *, since: str = "", days: str = "") -> type[DuringFilter]:
    """Return the filter by the period of a column."""
    return type("During", (DuringFilter,), {"field_name": field, "since": since, "days": days})


def read_span(text: str) -> tuple[datetime, datetime] | None:
    """Return the period that a URL names (see `pushserver.console.toolkit.times.span`), or None for any other text."""
    begin, end = (_read_time(part) for part in (*text.split("..", 1), "")[:2])
    return (begin, end) if begin and end else None


def _read_time(text: str) -> datetime | None:
    """Return a time in UTC, or None for any other text, and near the ends of the calendar, where sums overflow."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo and MINYEAR < found.year < MAXYEAR else None


class RecentValuesFilter(Alone, admin.ChoicesFieldListFilter):
    """A filter over a text field without choices. It offers the values of the newest rows."""

    def __init__(
        self,
        field: "Field[Any, Any]",
        request: HttpRequest,
        params: dict[str, list[str]],
        model: type[Model],
        model_admin: Any,
        field_path: str,
    ) -> None:
        newest = model._default_manager.order_by(*model_admin.ordering)[:RECENT_ROWS]  # noqa: SLF001
        chosen = params.get(f"{field_path}__exact", [])
        values = {value for value in (*newest.values_list(field_path, flat=True), *chosen) if value}
        offered = copy(field)
        offered.choices = [(value, value) for value in sorted(values)]
        super().__init__(offered, request, params, model, model_admin, field_path)

    def has_output(self) -> bool:
        return bool(self.field.flatchoices)
