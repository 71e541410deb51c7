"""Lists of tables that are too large to count, shown one page at a time.

The address of a page names the last row of the page before it, and PostgreSQL continues from there. So a page far back
is as fast as the first one, and rows that arrive meanwhile shift nothing. Rows are ordered by one column, newest first,
and rows with an equal value by their key.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

from pushserver.console.toolkit.lists.columns import hex_of

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
