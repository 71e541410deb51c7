"""First lines of row pages: one sentence that tells somebody in a hurry what the rest of the page says.

Only `pushserver` knows what rows of different apps mean together, and it registers the sentences here.
"""

from dataclasses import dataclass

from kit.admin.by_model import ByModel
from kit.admin.labels import Family


@dataclass(frozen=True, slots=True)
class FirstLine:
    """A sentence, safe as HTML, and the family of states whose colour it has."""

    text: str
    family: Family


_first_lines: ByModel[FirstLine] = ByModel()
first_line_for, first_line_of = _first_lines.register, _first_lines.of
