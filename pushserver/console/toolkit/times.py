"""Times for people: the age of a time, and its exact date and clock time. All times are in UTC, and show that."""

from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from kit.display import exact

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def span(begin: datetime, end: datetime) -> str:
    """Return a period in the form that the filters of lists read from a URL."""
    return f"{begin:%Y-%m-%dT%H:%M:%SZ}..{end:%Y-%m-%dT%H:%M:%SZ}"


def relative(at: datetime, element_id: str = "") -> SafeString:
    """Show how long ago a time was. Mouse hover and keyboard focus show the exact time.

    ``element_id`` keeps the focus on a page that refreshes itself.
    """
    named = format_html(' id="{}"', element_id) if element_id else ""
    markup = '<time{} datetime="{}" title="{}" tabindex="0">{}</time>'
    return format_html(markup, named, at.isoformat(), exact(at), _distance(at))


def coarse(at: datetime, step: timedelta) -> str:
    """Show the age of a time that is noted at most once in each ``step``, which is MINUTE, HOUR or DAY."""
    unit = dict(_UNITS)[step // timedelta(seconds=1)]
    return relative(at) if timezone.now() - at >= step else f"under 1 {unit} ago"


def exact_with_age(at: datetime) -> SafeString:
    return format_html('<time datetime="{}">{}</time> ({})', at.isoformat(), exact(at), _distance(at))


def in_words(span: timedelta) -> str:
    """Return a duration in the largest unit that suits it, with no more digits than people need."""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _distance(at: datetime) -> str:
    seconds = (timezone.now() - at).total_seconds()
    size, unit = next((unit for unit in _UNITS if abs(seconds) >= unit[0]), (1, "s"))
    span = f"{abs(seconds) // size:.0f} {unit}"
    return f"in {span}" if seconds <= -1 else f"{span} ago"
