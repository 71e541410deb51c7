"""Lists of tables that are too large to count."""

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from registrations.console.columns import hex_of

# Behind these, a page costs more the further back it is: whoever gets there is better off with a search or a filter.
MAX_PAGES = 100


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """Knows of a page whether there is a next one, and nothing about how many rows there are."""

    object_list: QuerySet[Any]

    def rows(self, number: int) -> tuple[list[Any], bool]:
        """One page, and whether another follows: looked up as one row more than is shown.

        First the keys, then the rows: whatever is joined or worked out for a row is so for those of this page only.
        """
        first = (number - 1) * self.per_page
        keys = list(self.object_list.values_list("pk", flat=True)[first : first + self.per_page + 1])
        shown = self.object_list.filter(pk__in=keys[: self.per_page])
        return list(shown), len(keys) > self.per_page and number < MAX_PAGES


class UncountedChangeList(ChangeList):
    """A list with "newer" and "older" instead of page numbers."""

    def get_results(self, request: HttpRequest) -> None:  # noqa: ARG002
        if not 1 <= self.page_num <= MAX_PAGES:
            raise IncorrectLookupParameters
        self.paginator = UncountedPaginator(self.queryset, self.list_per_page)
        self.result_list, self.has_next = self.paginator.rows(self.page_num)
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = False
        self.multi_page = self.has_next or self.page_num > 1

    def newer_url(self) -> str:
        return self.get_query_string({PAGE_VAR: self.page_num - 1}) if self.page_num > 1 else ""

    def older_url(self) -> str:
        return self.get_query_string({PAGE_VAR: self.page_num + 1}) if self.has_next else ""

    def url_for_result(self, result: Any) -> str:
        """Rows that are named by a hash have its digits in their URL."""
        if isinstance(result.pk, int):
            return super().url_for_result(result)
        name = f"{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(f"admin:{name}", args=[hex_of(result.pk)], current_app=self.model_admin.admin_site.name)
