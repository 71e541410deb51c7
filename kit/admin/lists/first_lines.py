"""First lines of row pages: one sentence that tells somebody in a hurry what the rest of the page says.

Only `pushserver` knows what rows of different apps mean together, and it registers the sentences here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import Model

from kit.admin.labels import Family


@dataclass(frozen=True, slots=True)
class FirstLine:
    """A sentence, safe as HTML, and the family of states whose colour it has."""

    text: str
    family: Family


FirstLines = Callable[[Any], FirstLine]
_first_lines: dict[type[Model], FirstLines] = {}


def first_line_for(model: type[Model]) -> Callable[[FirstLines], FirstLines]:
    """Return a decorator that registers the function which returns the first line about a row of ``model``."""

    def remember(function: FirstLines) -> FirstLines:
        _first_lines[model] = function
        return function

    return remember


def first_line_of(row: Model) -> FirstLine | None:
    """Return the first line about a row, or None where its model has none."""
    function = _first_lines.get(type(row))
    return function(row) if function else None
