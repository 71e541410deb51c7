"""Template tags for states, times and staff actions. States and times look as in the columns of lists."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.db.models import Model
from django.template import Context
from django.template.defaultfilters import capfirst
from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from pushserver.console.toolkit import labels, times
from pushserver.console.toolkit.changes import acted_on_through, changes_url, newest_changes
from pushserver.console.toolkit.commands import with_code
from pushserver.console.toolkit.lists.columns import NOTHING
from pushserver.console.toolkit.operations import id_of

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
