"""Health indicator of the free space of volumes, now and at the pace of the last day. The module does no I/O."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from pushserver.console.health.verdicts import BAD, Facts, State, Verdict, duration, listed

SIZE_OF_DATABASE = "size database"
# Free MiB below which PostgreSQL cannot make the next segment of its log, and below which somebody has to act: a start
# needs as much. Of a volume smaller than SMALL_MIB, such as one in memory for metrics, that is a quarter. Above it, a
# volume is low below a tenth of its size, and at most below LOW_MIB.
FULL_MIB, RED_MIB, LOW_MIB, SMALL_MIB = 16, 128, 1024, 256
# Time until a volume is full, at the pace of the last day.
RED_HOURS, YELLOW_HOURS = 6.0, 7 * 24.0


class Past(NamedTuple):
    """The first and the last value of a flow within a day, in MiB, with the times of their hours."""

    first_at: datetime
    first: int
    last_at: datetime
    last: int

    @property
    def growth_per_day(self) -> float:
        """Return the growth in MiB per day, or 0 if less than an hour is known."""
        days = (self.last_at - self.first_at) / timedelta(days=1)
        return (self.last - self.first) / days if days else 0.0


class Volume(NamedTuple):
    """The volume of these data of ours. ``is_needed`` says that messages need it, and not only reports."""

    name: str
    free_mib: int
    size_mib: int
    is_needed: bool = True

    @property
    def flow(self) -> str:
        """Return the name under which the history keeps its free space."""
        return f"free {self.name}"


def disk(facts: Facts) -> Verdict:
    """Judge the free space of the volumes, now and at the pace of the last day. The worst volume decides.

    A full one has no headline of its own, but PostgreSQL has, which then refuses what it is asked.
    """
    volumes: Sequence[Volume] = facts["volumes"]
    past: Mapping[str, Past] = facts.get("past", {})
    judged = ((state, volume) for volume in volumes if (state := _state_of(volume, past)) in BAD)
    worst = min(judged, key=lambda found: (BAD.index(found[0]), found[1].free_mib), default=None)
    if worst is None:
        left = [f"{size_of(volume.free_mib)} for {volume.name}" for volume in volumes]
        sentence = f"{listed(left)} left" if left else "no volume is seen"
        return Verdict(State.GREEN, f"{sentence}{_growth(past)}")
    state, volume = worst
    first_step = "Make room there, or extend it. Never delete files in PostgreSQL's `pg_wal`."
    sentence = f"the disk of {volume.name} has {size_of(volume.free_mib)} left of {size_of(volume.size_mib)}"
    if volume.free_mib < FULL_MIB:
        sentence = f"the disk of {volume.name} is full"
    elif (hours := hours_left(volume, past)) < YELLOW_HOURS:
        sentence += f", and is full in {duration(hours * 3600)} at the pace of the last day"
    return Verdict(state, sentence, first_step)


def _state_of(volume: Volume, past: Mapping[str, Past]) -> State:
    """Return the state of one volume. One that only reports need stops no message."""
    red_mib = RED_MIB if volume.size_mib >= SMALL_MIB else volume.size_mib / 4
    low_mib, hours = max(red_mib, min(LOW_MIB, volume.size_mib / 10)), hours_left(volume, past)
    if volume.is_needed and (volume.free_mib < red_mib or hours < RED_HOURS):
        return State.RED
    return State.YELLOW if volume.free_mib < low_mib or hours < YELLOW_HOURS else State.GREEN


def hours_left(volume: Volume, past: Mapping[str, Past]) -> float:
    """Return the hours until a volume is full at the pace of the last day. It is infinite if it does not fill."""
    known = past.get(volume.flow)
    return 24 * volume.free_mib / -known.growth_per_day if known and known.growth_per_day < 0 else inf


def _growth(past: Mapping[str, Past]) -> str:
    """Return the size and growth of the database, whose disk may be one that this process does not see."""
    known = past.get(SIZE_OF_DATABASE)
    if known is None:
        return ""
    return f"; the database has {size_of(known.last)}, and grows by {size_of(max(0.0, known.growth_per_day))} a day"


def size_of(mib: float) -> str:
    """Return a size for people. A large one that hardly changes has the same words."""
    return f"{mib:,.0f} MiB" if mib < 1024 else f"{mib / 1024:,.{0 if mib >= 10 * 1024 else 1}f} GiB"
