"""Low-water marks of the steps, which keep statements of other processes from reading what was processed long ago.

An index keeps the entry of a processed row until a vacuum, and for as long as anybody keeps an old snapshot open. The
leader finds out every 15 seconds since when rows wait for each step, and saves it here. Where no leader has for a
while, a mark is only less useful: rows that come later are newer.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import LiteralString

from kit.db.statements import write

_SAVE: LiteralString = """
    INSERT INTO batches_stepmark (step, nothing_before)
    SELECT * FROM unnest(%(steps)s::text[], %(times)s::timestamptz[])
    ON CONFLICT (step) DO UPDATE SET nothing_before = excluded.nothing_before
"""


def save(marks: Mapping[str, datetime]) -> None:
    """Save the marks by the name of their step."""
    write(_SAVE, {"steps": list(marks), "times": list(marks.values())})


def since(step: LiteralString) -> LiteralString:
    """Return the mark of a step as an SQL expression."""
    return f"(SELECT coalesce(max(nothing_before), '-infinity') FROM batches_stepmark WHERE step = '{step}')"
