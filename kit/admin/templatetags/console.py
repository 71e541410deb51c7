"""Template filters that show states and times as the columns of lists do."""

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from kit.admin import labels, times
from kit.admin.columns import NOTHING

register = template.Library()


@register.filter
def label(word: str) -> SafeString | str:
    """Show a state in the colour of its family."""
    return labels.label(word) if word else NOTHING


@register.filter
def ago(at: datetime | None, element_id: str = "") -> SafeString | str:
    """Show how long ago a time was."""
    return times.relative(at, element_id) if at else NOTHING
