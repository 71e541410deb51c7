"""Judge how full a table is that clients fill. The module is pure."""

from dataclasses import dataclass
from datetime import datetime

from kit.health.indicators import Indicator, Kind, State

# Of the limit of the table.
FILLING_FROM = 0.8


@dataclass(frozen=True, slots=True)
class Expiring:
    """How many of all would expire at once, and wait for somebody to allow it."""

    count: int
    total: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Filling:
    """How many rows are stored in a table, how many may be, and how many new ones are taken in a day at most.

    ``setting`` names the limit; ``name`` is what `manage.py allow_expiry` calls the rows.
    """

    setting: str
    name: str
    stored: int = 0
    limit: int = 1
    per_day: int = 1
    expiring: Expiring | None = None


def judge(kind: Kind, filling: Filling) -> Indicator:
    """Judge a table by what would expire at once, then by how full it is."""
    if filling.expiring:
        found = filling.expiring
        sentence = f"{found.count:,} of {found.total:,} would expire at once, and wait for somebody to allow it"
        first_step = (
            "Is the clock of PostgreSQL's host right, and were pushes delivered all the while? If nobody uses them any "
            f"more: `manage.py allow_expiry {filling.name}`."
        )
        return Indicator(kind, State.YELLOW, sentence, first_step, found.since)
    sentence = f"{filling.stored:,} of {filling.limit:,} are stored"
    if filling.stored < FILLING_FROM * filling.limit:
        return Indicator(kind, State.GREEN, sentence)
    days = max(0, filling.limit - filling.stored) // filling.per_day
    first_step = (
        f"Raise {filling.setting} if they are real: at the limit new phones are refused, in {days} days at the "
        "earliest."
    )
    return Indicator(kind, State.YELLOW, sentence, first_step)
