"""Template tags: states, times, staff actions, and the rows of a list. States and times look as in columns of lists."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django import template
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import lookup_field
from django.db.models import Model
from django.template import Context
from django.template.defaultfilters import capfirst
from django.utils.formats import localize
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from unfold.templatetags.unfold_list import (
    CHECKBOX_CLASSES,
    LINK_CLASSES,
    ROW_CLASSES,
    UnfoldResultList,
    result_headers,
)
from unfold.utils import display_for_field, display_for_value

from pushserver.console.toolkit import labels, times
from pushserver.console.toolkit.columns import NOTHING
from pushserver.console.toolkit.labels import with_code
from pushserver.console.toolkit.lists import UncountedChangeList
from pushserver.console.toolkit.operations import id_of
from pushserver.console.toolkit.related import acted_on_through, changes_url, newest_changes

register = template.Library()
register.filter(with_code)


@register.filter
def label(word: str) -> SafeString | str:
    """Show a state on the colour of its family."""
    return labels.label(word) if word else NOTHING


@register.filter
def ago(at: datetime | None, element_id: str = "") -> SafeString | str:
    """Show how long ago a time was."""
    return times.relative(at, element_id) if at else NOTHING


@register.filter
def cells(row: Sequence[Any], headers: Sequence[str]) -> SafeString:
    """Return the cells of a row as HTML, each with the heading of its column. The first one names the row."""
    named = zip(headers, row, strict=True)
    first, *others = [format_html('data-label="{}">{}', capfirst(header), localize(cell)) for header, cell in named]
    texts = [f'<th scope="row" {first}</th>', *(f"<td {other}</td>" for other in others)]
    return mark_safe("".join(texts))  # noqa: S308 - headings and values are escaped above


@register.inclusion_tag("console/staff_actions.html", takes_context=True)
def staff_actions(context: Context, row: Model) -> dict[str, Any]:
    """Show the newest staff actions on a row, with a link to all of them."""
    name = id_of(row)
    entries = newest_changes({type(row): [name], **acted_on_through(row)})
    return {"entries": entries, "all_url": changes_url(type(row), name), "perms": context.get("perms")}


CHECKBOX = "action_checkbox"
_CLASSES, _CHECKBOX_CLASSES, _LINK_CLASSES = map(" ".join, (ROW_CLASSES, CHECKBOX_CLASSES, LINK_CLASSES))


@register.inclusion_tag("admin/change_list_results.html")
def fact_list(cl: UncountedChangeList) -> dict[str, Any]:
    """Return the context of the theme's template for a list.

    The theme's own tag makes all headings again for every row, which takes longer than the rows.
    """
    headers = list(result_headers(cl))
    columns = _columns(cl, headers)
    suffix = _suffix(cl)
    rows = [UnfoldResultList(row, None, [_cells(cl, row, columns, suffix)]) for row in cl.result_list]
    return {"cl": cl, "result_headers": headers, "num_sorted_fields": 0, "results": rows}


def _columns(cl: UncountedChangeList, headers: Sequence[Mapping[str, Any]]) -> list[tuple[Any, SafeString]]:
    """Return each column with the attributes of its cells, which are the same in all rows."""
    columns: list[tuple[Any, SafeString]] = []
    for column, header in zip(cl.list_display, headers, strict=True):
        is_checkbox = column == CHECKBOX
        title = "Select record" if is_checkbox else header["text"]
        classes = _CHECKBOX_CLASSES if is_checkbox else f"field-{getattr(column, '__name__', column)} {_CLASSES}"
        columns.append((column, format_html('class="{}" data-label="{}"', classes, title)))
    return columns


def _suffix(cl: UncountedChangeList) -> str:
    """Return what follows the address of a row, so that its page leads back to this list with its filters."""
    if not cl.result_list:
        return ""
    filters: dict[str, Any] = {"preserved_filters": cl.preserved_filters, "opts": cl.opts}
    url = cl.url_for_result(cl.result_list[0])
    return str(add_preserved_filters(filters, url)).removeprefix(url)


def _cells(cl: UncountedChangeList, row: Any, columns: Sequence[tuple[Any, SafeString]], suffix: str) -> SafeString:
    """Return the cells of a row. The first one after the checkbox links to the page of the row."""
    cells: list[str] = []
    link = cl.url_for_result(row) + suffix
    for column, attributes in columns:
        text = conditional_escape(_shown(cl, row, column))
        tag = "td"
        if link and column != CHECKBOX:
            tag = "th"
            text = format_html('<a href="{}" class="{}">{}</a>', link, _LINK_CLASSES, text)
            link = ""
        cells.append(f"<{tag} {attributes}>{text}</{tag}>")
    return mark_safe("".join(cells))  # noqa: S308 - texts and attributes are escaped above


def _shown(cl: UncountedChangeList, row: Any, column: Any) -> Any:
    if callable(column):
        return display_for_value(column(row), NOTHING, getattr(column, "boolean", False))
    field, shows, value = lookup_field(column, row, cl.model_admin)
    if field is None or field.auto_created:
        return display_for_value(value, NOTHING, getattr(shows, "boolean", False))
    return display_for_field(value, field, NOTHING)
