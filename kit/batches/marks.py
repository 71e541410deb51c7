"""Low-water marks of the steps: no row that waits for a step is older than its mark.

A processed row keeps its index entry until a vacuum, and as long as an old snapshot is open. With a mark, statements do
not read such entries. A worker looks for rows from its marks on, once a second, and moves each mark to a minute before
the earliest row that it finds. It looks from the beginning when it connects, and every ten minutes. A due time is never
set before now, so later rows are newer, and a mark that nobody moves only saves less. The leader saves its marks for
statements of other processes.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import LiteralString

import structlog
from django.db import Error

from kit.db.reasons import STATEMENT_TIMEOUT, reason, sqlstate
from kit.db.statements import fetch, write

log = structlog.get_logger(__name__)

BEGINNING = datetime.min.replace(tzinfo=UTC)
# A mark is at least this old, because transactions take time and clocks differ. So old are the processed rows that a
# look reads at most.
OVERLAP = timedelta(minutes=1)
COMPLETE_EVERY_SECONDS = 600
SAVED_EVERY_SECONDS = 15
TIMEOUT, SLOW_SECONDS = "2s", 0.5  # of one search from the beginning
# A worker whose first search from the beginning takes too long reads the rows of this time.
AT_FIRST = timedelta(minutes=10)

_SAVE: LiteralString = """
    INSERT INTO batches_stepmark (step, nothing_before)
    SELECT * FROM unnest(%(steps)s::text[], %(times)s::timestamptz[])
    ON CONFLICT (step) DO UPDATE SET nothing_before = excluded.nothing_before
"""


class Marks:
    """The marks of one worker, each with a query for the earliest row that waits, from ``%(nothing_before)s`` on."""

    def __init__(self, queries: Mapping[str, LiteralString]) -> None:
        self._queries = queries
        self._marks: dict[str, datetime] = {}
        self._complete_at: dict[str, float] = {}  # when a search from the beginning is due; at once if missing
        self._save_at = 0.0

    def of(self, step: str) -> datetime:
        return self._marks.get(step, BEGINNING)

    def search_from_beginning(self) -> None:
        """Have the next look search from the beginning, because earlier rows may wait."""
        self._complete_at = {}

    def forget(self) -> None:
        """Forget the marks, because the clock was set back: new rows are older."""
        self._marks = {}
        self.search_from_beginning()

    def search(self, *, now: datetime) -> None:
        """Search from the beginning where that is due. After a slow search, the other steps wait for the next look."""
        began = monotonic()
        due = [step for step in self._queries if began >= self._complete_at.get(step, 0.0)]
        if not due:
            return
        self._marks = dict.fromkeys(self._queries, now - AT_FIRST) | self._marks
        write(f"SET statement_timeout = '{TIMEOUT}'")
        for step in due:
            if monotonic() - began < SLOW_SECONDS:
                self._search(step, now)
        write("RESET statement_timeout")

    def _search(self, step: str, now: datetime) -> None:
        self._complete_at[step] = monotonic() + COMPLETE_EVERY_SECONDS
        try:
            [(earliest,)] = fetch(self._queries[step], {"now": now, "nothing_before": BEGINNING})
            self.move(step, earliest, now=now)
        except Error as error:
            if sqlstate(error) != STATEMENT_TIMEOUT:
                raise
            log.warning("oldest_not_found", step=step, reason=reason(error))

    def move(self, step: str, earliest: datetime | None, *, now: datetime) -> None:
        """Move a mark, after a look from it has found the earliest row, or none."""
        self._marks[step] = min(earliest or now, now) - OVERLAP

    def save(self) -> None:
        """Save the marks every `SAVED_EVERY_SECONDS`."""
        if self._marks and monotonic() >= self._save_at:
            write(_SAVE, {"steps": list(self._marks), "times": list(self._marks.values())})
            self._save_at = monotonic() + SAVED_EVERY_SECONDS


def since(step: LiteralString) -> LiteralString:
    """Return the saved mark of a step as an SQL expression."""
    return f"(SELECT coalesce(max(nothing_before), '-infinity') FROM batches_stepmark WHERE step = '{step}')"
