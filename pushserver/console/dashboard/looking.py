"""One look at everything: what is the case, what it means, and since when."""

from dataclasses import dataclass
from datetime import datetime

from pushserver.console.dashboard.collecting import collect
from pushserver.console.dashboard.facts import Facts
from pushserver.console.dashboard.hour import Hour, read_hour
from pushserver.console.dashboard.lights import Light, lights
from pushserver.console.dashboard.memory import remember


@dataclass(frozen=True, slots=True)
class Look:
    facts: Facts
    hour: Hour
    lights: list[Light]


def look(*, now: datetime) -> Look:
    hour = read_hour(now)
    facts = collect(hour, now=now)
    found = lights(facts)
    # While Redis hangs, each look into it takes its time-out.
    return Look(facts, hour, found if facts.is_redis_away else remember(found, now=now))
