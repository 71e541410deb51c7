"""First lines of row pages: one sentence that tells somebody in a hurry what the rest of the page says.

Only `pushserver` knows what rows of different apps mean together, and it registers the sentences here.
"""

from dataclasses import dataclass
from functools import singledispatch

from django.db.models import Model

from pushserver.console.toolkit.labels import Family


@dataclass(frozen=True, slots=True)
class FirstLine:
    """A sentence, safe as HTML, and the family of states whose colour it has."""

    text: str
    family: Family


@singledispatch
def first_line_of(_row: Model) -> FirstLine | None:
    """Return the first line of the page of a row, or None where no function is registered for its model."""
    return None
