"""Template tag for the rows of a list, with the look of the theme.

It replaces the theme's own tag, which makes all headings again for every row: that takes longer than the rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from django import template
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import lookup_field
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.templatetags.unfold_list import (
    CHECKBOX_CLASSES,
    LINK_CLASSES,
    ROW_CLASSES,
    UnfoldResultList,
    result_headers,
)
from unfold.utils import display_for_field, display_for_value

from kit.admin.lists.changelist import UncountedChangeList
from kit.admin.lists.columns import NOTHING

register = template.Library()
CHECKBOX = "action_checkbox"
_CLASSES, _CHECKBOX_CLASSES, _LINK_CLASSES = map(" ".join, (ROW_CLASSES, CHECKBOX_CLASSES, LINK_CLASSES))


@register.inclusion_tag("admin/change_list_results.html")
def fact_list(cl: UncountedChangeList) -> dict[str, Any]:
    """Return the context of the theme's template for a list."""
    headers = list(result_headers(cl))
    named = zip(cl.list_display, headers, strict=True)
    titles = ["Select record" if column == CHECKBOX else header["text"] for column, header in named]
    rows = [UnfoldResultList(row, None, _cells(cl, row, titles)) for row in cl.result_list]
    return {"cl": cl, "result_headers": headers, "num_sorted_fields": 0, "results": rows}


def _cells(cl: UncountedChangeList, row: Any, titles: Sequence[str]) -> Iterator[SafeString]:
    link = _url(cl, row)
    for column, title in zip(cl.list_display, titles, strict=True):
        text = _shown(cl, row, column)
        classes = f"field-{getattr(column, '__name__', column)} {_CLASSES}"
        if column == CHECKBOX:
            yield format_html('<td class="{}" data-label="{}">{}</td>', _CHECKBOX_CLASSES, title, text)
        elif link:
            text = format_html('<a href="{}" class="{}">{}</a>', link, _LINK_CLASSES, text)
            link = ""  # only the first column has it
            yield format_html('<th class="{}" data-label="{}">{}</th>', classes, title, text)
        else:
            yield format_html('<td class="{}" data-label="{}">{}</td>', classes, title, text)


def _url(cl: UncountedChangeList, row: Any) -> str:
    filters: dict[str, Any] = {"preserved_filters": cl.preserved_filters, "opts": cl.opts}
    return str(add_preserved_filters(filters, cl.url_for_result(row)))


def _shown(cl: UncountedChangeList, row: Any, column: Any) -> Any:
    field, shows, value = lookup_field(column, row, cl.model_admin)
    if field is None or field.auto_created:
        return display_for_value(value, NOTHING, getattr(shows, "boolean", False))
    return display_for_field(value, field, NOTHING)
