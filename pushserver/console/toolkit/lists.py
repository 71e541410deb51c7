"""Lists of tables that are too large to count, and their filters.

The address of a page names the last row of the page before it, and PostgreSQL continues from there. So a page far back
is as fast as the first one, and rows that arrive meanwhile shift nothing. Rows are ordered by one column, newest first,
and rows with an equal value by their key.

Rule: one filter is active at a time. Each has an index in the order of the list, and no index serves two filters.
Filters show the words of the code, and offer choices without a scan of a large table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Field, Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils import timezone

from pushserver.console.toolkit.columns import hex_of

# A phone shows rows as cards, one below the other. `console.js` sets this cookie in windows narrower than 640 px.
NARROW_COOKIE = "narrow"
NARROW_ROWS = 25
# Parameters of the address: the page shows the rows that are older, or newer, than the row that they name.
OLDER, NEWER = "older", "newer"
_SEPARATOR = "~"


class UncountedChangeList(ChangeList):
    """A list with "newer" and "older" instead of page numbers."""

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        given = super().get_filters_params(params)
        return {name: value for name, value in given.items() if name not in {OLDER, NEWER}}

    def get_query_string(self, new_params: dict[str, Any] | None = None, remove: Iterable[str] | None = None) -> str:
        """Return the query string without a page, because a new search or filter begins with its newest rows."""
        return super().get_query_string({OLDER: None, NEWER: None, **(new_params or {})}, remove)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:  # noqa: ARG002
        """Return the fixed order. The address cannot change it: another column would make PostgreSQL sort the table."""
        return [f"-{name}" for name in self.ordered_by]

    @property
    def ordered_by(self) -> list[str]:
        first = str((self.model_admin.ordering or ["pk"])[0]).removeprefix("-")
        return [first] if first == "pk" else [first, "pk"]

    def get_results(self, request: HttpRequest) -> None:
        if NARROW_COOKIE in request.COOKIES:
            self.list_per_page = min(self.list_per_page, NARROW_ROWS)
        keys = self._keys_of_page(request)
        # The keys are read before the rows, so that PostgreSQL joins and annotates the rows of this page only.
        self.result_list = list(self.queryset.filter(pk__in=[key[-1] for key in keys]))
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = False
        self.multi_page = bool(self.older_url or self.newer_url)

    def _keys_of_page(self, request: HttpRequest) -> Sequence[tuple[Any, ...]]:
        older, newer = request.GET.get(OLDER), request.GET.get(NEWER)
        if newer:
            keys, has_newer = self._poll(self._place_from(newer), newer=True)
            if has_newer:
                return self._between(keys, has_newer=True, has_older=True)
            older = None  # nothing is newer than this page, so it is the first
        keys, has_older = self._poll(self._place_from(older) if older else None)
        return self._between(keys, has_newer=bool(older), has_older=has_older)

    def _between(
        self, keys: Sequence[tuple[Any, ...]], *, has_newer: bool, has_older: bool
    ) -> Sequence[tuple[Any, ...]]:
        self.newer_url = self.url(NEWER, keys[:1]) if has_newer else ""
        self.older_url = self.url(OLDER, keys[-1:]) if has_older else ""
        return keys

    def _poll(self, position: tuple[Any, ...] | None, *, newer: bool = False) -> tuple[list[tuple[Any, ...]], bool]:
        """Return the keys of one page, newest first, and whether more rows follow it.

        The query reads one row more than the page shows, so that no count is needed.
        """
        rows = self.queryset.order_by(*self.ordered_by) if newer else self.queryset
        if position:
            rows = rows.filter(self._beyond(position, "gt" if newer else "lt"))
        keys = list(rows.values_list(*self.ordered_by)[: self.list_per_page + 1])
        page = keys[: self.list_per_page]
        return page[::-1] if newer else page, len(keys) > self.list_per_page

    def _beyond(self, position: tuple[Any, ...], way: str) -> Q:
        *first, pk = position
        if not first:
            return Q(**{f"pk__{way}": pk})
        name = self.ordered_by[0]
        # The second part implies the first one. The first one is here because an index can answer it.
        same = Q(**{name: first[0], f"pk__{way}": pk})
        return Q(**{f"{name}__{way}e": first[0]}) & (Q(**{f"{name}__{way}": first[0]}) | same)

    def url(self, way: str, keys: Sequence[tuple[Any, ...]]) -> str:
        """Return the address of the page that follows the first of ``keys``, or of the first page without keys."""
        return self.get_query_string({way: _SEPARATOR.join(map(_text, keys[0]))} if keys else {})

    def _place_from(self, text: str) -> tuple[Any, ...]:
        parts = text.split(_SEPARATOR)
        names = self.ordered_by
        if len(parts) != len(names):
            raise IncorrectLookupParameters
        try:
            return tuple(_value(self._field(name), part) for name, part in zip(names, parts, strict=True))
        except (ValueError, OverflowError, ValidationError) as error:
            raise IncorrectLookupParameters from error

    def _field(self, name: str) -> Any:
        return self.opts.pk if name == "pk" else self.opts.get_field(name)

    def url_for_result(self, result: Any) -> str:
        """Return the address of a row. A binary key is written as hex digits."""
        if not isinstance(result.pk, bytes):
            return super().url_for_result(result)
        name = f"{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(f"admin:{name}", args=[hex_of(result.pk)], current_app=self.model_admin.admin_site.name)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return hex_of(value) if isinstance(value, bytes) else str(value)


def _value(field: Any, text: str) -> Any:
    """Return the value of a field from its text in the address.

    Raises ValueError, OverflowError or ValidationError for a text that is no value of the field.
    """
    value = bytes.fromhex(text) if field.get_internal_type() == "BinaryField" else field.to_python(text)
    return _in_utc(value) if isinstance(value, datetime) else value


def _in_utc(at: datetime) -> datetime:
    """Return the time in UTC, because PostgreSQL refuses some UTC offsets that Python accepts.

    Raises ValueError for a time without an offset.
    """
    if at.tzinfo is None:
        raise ValueError
    return at.astimezone(UTC)


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


class ConditionFilter(admin.SimpleListFilter):
    """A filter whose choices are conditions, each with its text, by their values in the URL.

    A condition is a function where it depends on the present.
    """

    conditions: ClassVar[Mapping[str, tuple[str, Q | Callable[[], Q]]]] = {}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(value, words) for value, (words, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        _, condition = self.conditions.get(self.value() or "", ("", Q()))
        return queryset.filter(condition if isinstance(condition, Q) else condition())


def only(name: str, words: str, condition: Q | Callable[[], Q], *, title: str = "") -> type[admin.SimpleListFilter]:
    """Return the filter with one choice, the rows that meet the condition. It resets all other filters."""
    return choices(name, {"yes": (words, condition)}, title=title)


def choices(
    name: str, conditions: Mapping[str, tuple[str, Q | Callable[[], Q]]], *, title: str = ""
) -> type[admin.SimpleListFilter]:
    """Return the filter with these choices. It resets all other filters."""
    members = {"title": title or name, "parameter_name": name, "conditions": conditions}
    return type("Choices", (Alone, ConditionFilter), members)


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
