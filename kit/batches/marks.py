"""Low-water marks of the steps: no row that waits for a step is older than its mark.

With a mark, statements of other processes do not read index entries of processed rows. Those entries stay until a
vacuum, and as long as an old snapshot is open. The leader finds and saves the marks every 15 seconds. A mark that
nobody renews stays correct, because later rows are newer, and only saves less.
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
