"""Commands in sentences: between backticks in the text, and as code on a page."""

from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe


def with_code(sentence: str) -> SafeString:
    """Return a sentence as HTML, with its commands and names of queues as code."""
    parts = enumerate(conditional_escape(sentence).split("`"))
    return mark_safe("".join(f"<code>{part}</code>" if number % 2 else part for number, part in parts))  # noqa: S308 - escaped
