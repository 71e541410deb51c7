"""States and times in templates, as columns show them."""

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from registrations.console import labels, times
from registrations.console.columns import NOTHING

register = template.Library()


@register.filter
def label(word: str) -> SafeString | str:
    return labels.label(word) if word else NOTHING


@register.filter
def ago(at: datetime | None, element_id: str = "") -> SafeString | str:
    return times.relative(at, element_id) if at else NOTHING
