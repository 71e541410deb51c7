"""Columns of lists and of detail pages, made from the name of a field.

Each function returns a callable with a description, as Django takes it in `list_display` and `fields`.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.utils.html import format_html

from kit.display import counted, host_of
from pushserver.console.toolkit import labels, times

Column = Callable[[Any], Any]

# The boxes of lists and of the menu find a row by these digits.
SHORT_DIGITS = 8
NOTHING = "-"


def hex_of(value: bytes | None) -> str:
    """Return the digits of a binary value, and an empty string for None."""
    return value.hex() if value else ""


def as_digits(text: str) -> str:
    """Return digits of a hash as HTML in a monospaced font."""
    return format_html("<code>{}</code>", text) if text else NOTHING


def _column(field: str, label: str, show: Callable[[Any], Any]) -> Column:
    def column(row: Any) -> Any:
        value = row
        for name in field.split("__"):
            value = getattr(value, name, None)
        return show(value() if callable(value) else value)

    return _described(column, field, label or field.replace("_", " "))


def _described(column: Column, name: str, label: str) -> Column:
    column.__name__ = name  # Django makes the CSS class of the column from it
    return admin.display(column, description=label)


def _kind(show: Callable[[Any], Any]) -> Callable[..., Column]:
    """Return a kind of columns: a function of the name of a field, and of a heading where the name does not say it."""
    return lambda field, label="": _column(field, label, show)


short_hash = _kind(lambda value: as_digits(hex_of(value)[:SHORT_DIGITS]))
short_id = _kind(lambda value: as_digits(str(value)[:SHORT_DIGITS]))  # of a UUID; the page of its row shows the whole
full_hash = _kind(lambda value: as_digits(hex_of(value)))
word = _kind(lambda value: NOTHING if value in {None, ""} else str(value))  # as it is in code, log and table
state = _kind(lambda value: labels.label(str(value)) if value else NOTHING)
number = _kind(lambda value: NOTHING if value is None else f"{value:,}")
milliseconds = _kind(lambda value: NOTHING if value is None else f"{value:,} ms")
yes_no = _kind(lambda value: "yes" if value else "no")  # Django's red cross would present every "no" as an error
moment = _kind(lambda at: times.exact_with_age(at) if at else NOTHING)
host = _kind(lambda url: host_of(url) or NOTHING)  # of a URL, whose other parts can contain a credential


def age(field: str, label: str = "age") -> Column:
    """Show how long ago a time was. The page of a row has the exact time beside it."""
    return shown_as(_column(field, label, lambda at: times.relative(at) if at else NOTHING), moment(field, label))


def shown_as(column: Column, on_page: Column) -> Column:
    """Return the column of a list that is shown as another one on the page of a row."""
    column.on_page = on_page  # type: ignore[attr-defined]  # as Django does with its description
    return column


def coarse_age(field: str, label: str, step: timedelta) -> Column:
    """Show the age of a time that is noted at most once in each ``step``: a minute, an hour or a day."""
    return _column(field, label, lambda at: times.coarse(at, step) if at else NOTHING)


def count(field: str, label: str) -> Column:
    """Show the length of a list that is itself not shown. ``field`` is an annotation with that length."""
    return _column(field, label, lambda number: counted(number, "entry", "entries") if number else "none")


def link(url_of: Callable[[Any], str], label: str, text: str = "") -> Column:
    """Show a link to another row. ``url_of`` returns an empty string for a row without a link."""

    def column(row: Any) -> str:
        url = url_of(row)
        return format_html('<a href="{}">{}</a>', url, text or label) if url else NOTHING

    return _described(column, f"{label}_link", label)
