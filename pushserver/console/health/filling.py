"""Health indicator of a table that clients fill, judged by its size against its limit. The module does no I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pushserver.console.health.indicators import Indicator, Kind, State

# Share of the limit from which the indicator is yellow.
FILLING_FROM = 0.8


class Expiring(Protocol):
    """A mass expiry that waits for the permission of an operator: ``count`` of ``total`` rows."""

    count: int
    total: int
    found_at: datetime


@dataclass(frozen=True, slots=True)
class Filling:
    """The number of rows in a table, and its limit.

    ``setting`` is the setting with the limit; ``name`` is the name of the rows in `manage.py allow_expiry`.
    """

    setting: str
    name: str
    stored: int = 0
    limit: int = 1
    expiring: Expiring | None = None


def judge(kind: Kind, filling: Filling) -> Indicator:
    """Judge a table by a mass expiry that waits, and then by its size."""
    if filling.expiring:
        found = filling.expiring
        sentence = f"{found.count:,} of {found.total:,} would expire at once, and wait until an operator allows it"
        first_step = (
            "Is the clock of PostgreSQL's host right, and were pushes delivered in the last months? If these rows are "
            f"really unused: `manage.py allow_expiry {filling.name}`."
        )
        return Indicator(kind, State.YELLOW, sentence, first_step, found.found_at)
    sentence = f"{filling.stored:,} of {filling.limit:,} are stored"
    if filling.stored < FILLING_FROM * filling.limit:
        return Indicator(kind, State.GREEN, sentence)
    first_step = (
        f"Raise {filling.setting} if they are real. At the limit, new phones replace those to which nothing was ever "
        "delivered."
    )
    return Indicator(kind, State.YELLOW, sentence, first_step)
