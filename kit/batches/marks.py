"""Low-water marks of the steps: no row that waits for a step is older than its mark.

A processed row keeps its index entry until a vacuum, and as long as an old snapshot is open. With a mark, statements do
not read such entries. Each worker moves its marks every 15 seconds, each to a minute before the earliest row that it
finds from there. It searches from the beginning of the index when it connects, when an old row was announced, and every
ten minutes. The leader saves its marks for statements of other processes. A mark that nobody moves stays correct,
because later rows are newer, and only saves less.
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
# A mark is at least this old, because transactions take time and clocks differ. This time plus the time between two
# moves is the range of processed rows that a look reads.
OVERLAP = timedelta(minutes=1)
MOVED_EVERY_SECONDS = 15
COMPLETE_EVERY_SECONDS = 600
TIMEOUT, SLOW_SECONDS = "2s", 0.5  # of one search
SHARE = 0.05  # largest share of a worker's time for searches, however many old rows are announced
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
        self._move_at = self._move_not_before = 0.0

    def of(self, step: str) -> datetime:
        return self._marks.get(step, BEGINNING)

    def search_from_beginning(self) -> None:
        """Have the marks moved soon, from the beginning of the index, because earlier rows may wait."""
        self._complete_at = {}
        self._move_at = self._move_not_before

    def forget(self) -> None:
        """Forget the marks, because the clock was set back: new rows are older."""
        self._marks = {}
        self.search_from_beginning()

    def move(self, *, now: datetime, saves: bool) -> None:
        """Move the marks if they are due. After a slow search, the other steps wait for the next time."""
        began = monotonic()
        if not self._queries or began < self._move_at:
            return
        self._marks = dict.fromkeys(self._queries, now - AT_FIRST) | self._marks
        write(f"SET statement_timeout = '{TIMEOUT}'")
        for step in self._queries:
            if monotonic() - began < SLOW_SECONDS:
                self._move(step, now)
        write("RESET statement_timeout")
        self._move_not_before = monotonic() + (monotonic() - began) / SHARE
        self._move_at = max(began + MOVED_EVERY_SECONDS, self._move_not_before)
        if saves:
            write(_SAVE, {"steps": list(self._marks), "times": list(self._marks.values())})

    def _move(self, step: str, now: datetime) -> None:
        is_complete = monotonic() >= self._complete_at.get(step, 0.0)
        begin = BEGINNING if is_complete else self._marks[step]
        try:
            [(oldest,)] = fetch(self._queries[step], {"now": now, "nothing_before": begin})
            self._marks[step] = min(oldest or now, now) - OVERLAP
        except Error as error:
            if sqlstate(error) != STATEMENT_TIMEOUT:
                raise
            log.warning("oldest_not_found", step=step, reason=reason(error))
        if is_complete:
            self._complete_at[step] = monotonic() + COMPLETE_EVERY_SECONDS


def since(step: LiteralString) -> LiteralString:
    """Return the saved mark of a step as an SQL expression."""
    return f"(SELECT coalesce(max(nothing_before), '-infinity') FROM batches_stepmark WHERE step = '{step}')"
