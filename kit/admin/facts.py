"""Admin pages of recorded facts, which can be looked at and never changed."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from unfold.admin import ModelAdmin, TabularInline

from kit.admin.links import links_of
from kit.admin.lists import search
from kit.admin.lists.changelist import UncountedChangeList
from kit.admin.lists.first_lines import first_line_of

NOT_UNDERSTOOD = "Nothing was searched: this is no hash and no id. Type at least 8 hex digits of a hash, or a whole id."


class ReadOnly:
    """Pages on which those who may view a row may do that, and nobody may do anything else."""

    def has_add_permission(self, *_args: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False


class Narrowed:
    """Pages whose URL can narrow the list by what its filters offer, and by nothing else."""

    # Few rows, as on a phone each is a card. Lists of facts have more, and know whether it is a phone.
    list_per_page = 25
    list_filter: Any
    opts: Any  # from ModelAdmin, whose types unfold hides
    # Lookups that links from other pages use, in addition to those of `list_filter`.
    linked_by: ClassVar[Sequence[str]] = ()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:  # noqa: ARG002
        """Return whether a URL may ask for this lookup.

        By default it may ask for any column, and an answer about a digest is an answer about a token. Even of a column
        that is offered, a part of a word or a pattern is refused, because the whole table would be read for it.
        """
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in self.list_filter]
        own = {getattr(name, "parameter_name", None) for name in names}
        offered = {f"{name}__{kind}" for name in names for kind in ("exact", "isnull")}
        is_text = "\0" not in value  # PostgreSQL refuses a text with NUL
        return is_text and lookup in {*self.linked_by, *own, *offered}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        title = capfirst(self.opts.verbose_name_plural)  # Django's own title is "Select … to view"
        # A method of the page that this class is mixed into.
        return super().changelist_view(request, {"title": title} | (extra_context or {}))  # type: ignore[misc]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row. An empty ``from_field`` becomes None, because Django takes an empty `_to_field` for the name
        of a field.
        """
        # A method of the page that this class is mixed into.
        return super().get_object(request, object_id, from_field or None)  # type: ignore[misc]


class FactPage(Narrowed, ReadOnly):
    """The page of a row. Subclasses name the fields that are shown of it, and no other field is."""

    change_form_template = "admin/facts/change_form.html"
    # Names of fields and columns, by the heading that they stand under.
    shown: ClassVar[Mapping[str, Sequence[Any]]] = {}

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:  # noqa: ARG002
        return [(heading, {"fields": columns}) for heading, columns in self.shown.items()]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:  # noqa: ARG002
        return [column for columns in self.shown.values() for column in columns]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        context["related_links"] = links_of(context["original"])
        context["first_line"] = first_line_of(context["original"])
        return super().render_change_form(request, context, *args, **kwargs)  # type: ignore[misc]


class FactAdmin(FactPage, ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """A list of rows, with a page for each of them."""

    change_list_template = "admin/facts/change_list.html"
    actions = None
    ordering: ClassVar[Any] = ("-pk",)
    # Sorting by a column without an index would sort the whole table.
    sortable_by: ClassVar[Any] = ()
    # A page is short because showing a row takes far longer than reading it.
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    # Fields that are found by their first digits, with the size of their values in bytes.
    search_hashes: ClassVar[Sequence[tuple[str, int]]] = ()
    # Whether plain words can be searched for, too.
    takes_words: ClassVar[bool] = False
    # Fields that these pages never show, and therefore do not even read from the database.
    unread: ClassVar[Sequence[str]] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.defer(*self.unread)

    def get_changelist(self, request: HttpRequest, **_kwargs: Any) -> type[UncountedChangeList]:  # noqa: ARG002
        return UncountedChangeList

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:  # noqa: ARG002
        """Return whether there is a search, in the form that Django expects; `matching` carries it out."""
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
        """Return the condition for the rows that a search term means, empty when it means nothing here."""
        digits = search.hash_digits(term)
        condition = search.by_hash(digits, self.search_hashes) if digits else Q()
        return condition | self.matching_id(term) if search.is_id(term) else condition

    def matching_id(self, term: str) -> Q:  # noqa: ARG002 - for subclasses that have ids
        """Return the condition for the rows that an id means. Subclasses whose rows have ids override it."""
        return Q()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        if self.opts.pk.get_internal_type() != "BinaryField":
            return super().get_object(request, object_id, from_field)
        digits = search.hash_digits(unquote(object_id))
        return self.get_queryset(request).filter(pk=bytes.fromhex(digits)).first() if len(digits) % 2 == 0 else None


class FactInline(ReadOnly, TabularInline):  # type: ignore[misc]  # unfold has no types
    """Rows that belong to another row, on the page of that row."""

    extra = 0
    hide_title = True
    shown: ClassVar[Sequence[Any]] = ()
    unread: ClassVar[Sequence[str]] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.defer(*self.unread)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:  # noqa: ARG002
        return self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:  # noqa: ARG002
        return self.shown
