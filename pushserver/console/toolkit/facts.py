"""Read-only admin pages of recorded facts, such as attempts and envelopes."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from unfold.admin import ModelAdmin, TabularInline

from pushserver.console.toolkit import search
from pushserver.console.toolkit.lists import UncountedChangeList
from pushserver.console.toolkit.related import first_line_of, links_from

NOT_UNDERSTOOD = "No search was made. Type the first 8 or more hex digits of a hash, or a whole id."


class ReadOnly:
    """Pages that let people with the permission view rows, and let nobody add, change or delete them."""

    # Fields that these pages never show, and therefore do not read from the database.
    unread: ClassVar[Sequence[str]] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)  # type: ignore[misc]  # the next class is a ModelAdmin
        return rows.defer(*self.unread)

    def has_add_permission(self, *_args: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False


class Narrowed:
    """Pages whose URL can narrow the list by the lookups of its filters and of ``linked_by`` only."""

    # Few rows, because a phone shows each as a card. Lists of facts show more rows, and detect a phone.
    list_per_page = 25
    # The theme's template reads it twice for each row, and to find that it is missing takes longer than a cell.
    list_sections: ClassVar[Any] = ()
    list_filter: Any
    opts: Any  # from ModelAdmin, whose types unfold hides
    # Lookups that links from other pages use, in addition to the lookups of `list_filter`.
    linked_by: ClassVar[Sequence[str]] = ()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:  # noqa: ARG002
        """Return whether a URL may use this lookup.

        Django would allow any column, and somebody who can look up a digest can find out a token. Lookups by a part of
        a word or by a pattern are refused for every column, because PostgreSQL would read the whole table for them.
        """
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in self.list_filter]
        own = {getattr(name, "parameter_name", None) for name in names}
        offered = {f"{name}__{kind}" for name in names for kind in ("exact", "isnull")}
        is_text = "\0" not in value  # PostgreSQL refuses a text with NUL
        return is_text and lookup in {*self.linked_by, *own, *offered}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        title = capfirst(self.opts.verbose_name_plural)  # Django's own title is "Select … to view"
        # The next class in the order of resolution is a ModelAdmin.
        return super().changelist_view(request, {"title": title} | (extra_context or {}))  # type: ignore[misc]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row. An empty ``from_field`` becomes None, because Django treats an empty `_to_field` as the name
        of a field.
        """
        # The next class in the order of resolution is a ModelAdmin.
        return super().get_object(request, object_id, from_field or None)  # type: ignore[misc]


class FactPage(Narrowed, ReadOnly):
    """The page of a row. It shows the fields that a subclass lists in ``shown``, and no others."""

    change_form_template = "admin/facts/change_form.html"
    # Names of fields, and columns, by their heading on the page. Those of the list may stand here as they are.
    shown: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:  # noqa: ARG002
        on_page = {
            heading: [getattr(one, "on_page", one) for one in columns] for heading, columns in self.shown.items()
        }
        return [(heading, {"fields": columns}) for heading, columns in on_page.items()]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [column for _, section in self.get_fieldsets(request, obj) for column in section["fields"]]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        context["related_links"] = list(links_from(context["original"]))
        context["first_line"] = first_line_of(context["original"])
        return super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]


class FactAdmin(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """A list of rows with a page for each row."""

    change_list_template = "admin/facts/change_list.html"
    actions = None
    ordering: ClassVar[Any] = ("-pk",)
    # Sorting by a column without an index would sort the whole table.
    sortable_by: ClassVar[Any] = ()
    # A page is short because rendering a row takes far longer than reading it.
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    # Fields that the search compares with the first digits of a hash, with the size of their values in bytes.
    search_hashes: ClassVar[Sequence[tuple[str, int]]] = ()
    # Whether the search also takes plain words.
    takes_words: ClassVar[bool] = False

    def get_changelist(self, request: HttpRequest, **_kwargs: Any) -> type[UncountedChangeList]:  # noqa: ARG002
        return UncountedChangeList

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:  # noqa: ARG002
        """Return a field name where this list has a search, as Django requires. `matching` makes the search."""
        return ("pk",) if self.search_help_text else ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the rows that match all terms of the search."""
        for term in search_term.split():
            condition = self.matching(term)
            if not condition:
                messages.warning(request, NOT_UNDERSTOOD)
                return queryset.none(), False
            queryset = queryset.filter(condition)
        return queryset, False

    def matching(self, term: str) -> Q:
        """Return the condition for the rows that match a search term. It is empty for a term of no known form."""
        digits = search.hash_digits(term)
        condition = search.by_hash(digits, self.search_hashes) if digits else Q()
        return condition | self.matching_id(term) if search.is_id(term) else condition

    def matching_id(self, term: str) -> Q:  # noqa: ARG002 - for subclasses that have ids
        """Return the condition for the rows with an id. Subclasses whose rows have ids override it."""
        return Q()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        if self.opts.pk.get_internal_type() != "BinaryField":
            return super().get_object(request, object_id, from_field)
        digits = search.hash_digits(unquote(object_id))
        return self.get_queryset(request).filter(pk=bytes.fromhex(digits)).first() if len(digits) % 2 == 0 else None


class FactInline(ReadOnly, TabularInline):  # type: ignore[misc]  # unfold has no types
    """A table of the rows that belong to another row, on the page of that row. All its ``fields`` are read-only."""

    extra = 0
    hide_title = True
