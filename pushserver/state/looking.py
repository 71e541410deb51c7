"""Collect the whole state once: the facts, what they mean, and since when."""

from dataclasses import dataclass
from datetime import datetime

from pushserver.state.collecting import collect
from pushserver.state.facts import Facts
from pushserver.state.hour import Hour, read_hour
from pushserver.state.lights import Light, lights
from pushserver.state.memory import remember


@dataclass(frozen=True, slots=True)
class Look:
    """The facts of one moment, the hour before it, and the lights."""

    facts: Facts
    hour: Hour
    lights: list[Light]


def look(*, now: datetime) -> Look:
    """Collect the facts and decide the lights. Without Redis the lights do not tell since when."""
    hour = read_hour(now)
    facts = collect(hour, now=now)
    found = lights(facts)
    # While Redis hangs, each question to it takes its time-out.
    return Look(facts, hour, found if facts.is_redis_away else remember(found, now=now))
