"""Health indicators of queues, judged by the number of waiting rows and the age of the oldest. It does no I/O."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pushserver.console.health.indicators import DATABASE_SILENT, Indicator, Kind, Page, State, duration

# The gauges of `/metrics` count waiting rows up to this number.
MAX_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """The number of waiting rows, and the seconds for which the oldest of them has been due."""

    count: int = 0
    oldest_seconds: float = 0.0

    @property
    def number(self) -> str:
        """Return the number as text; counting stops at `MAX_COUNTED`."""
        return f"{self.count:,}{' or more' if self.count >= MAX_COUNTED else ''}"

    @property
    def sentence(self) -> str:
        if not self.count:
            return "empty"
        return f"{self.number} waiting, the oldest for {duration(self.oldest_seconds)}"


def judge_queue(
    kind: Kind, state: State, waiting: Waiting | None, first_step: str, now: datetime, *, subject: str
) -> Indicator:
    """Return the indicator of a queue in this state. ``subject`` names what users then get late, such as "Replies"."""
    if waiting is None:
        return Indicator(kind, State.GREY, DATABASE_SILENT)
    found = Indicator(kind, state, waiting.sentence)
    if not found.is_bad:
        return found
    late = f"{subject} are {duration(waiting.oldest_seconds)} late"
    since = now - timedelta(seconds=waiting.oldest_seconds)
    return replace(found, first_step=first_step, since=since, late=late)


@dataclass(frozen=True, slots=True)
class Tile:
    """A queue on the dashboard: the age of its oldest row, and the number of rows.

    ``waiting`` is None if PostgreSQL did not count in time. ``word`` is the state of the rows; ``page`` lists them.
    """

    kind: Kind
    title: str
    waiting: Waiting | None
    word: str
    state: State
    page: Page
