"""Collect the whole state once: the facts, what they mean, and since when."""

from dataclasses import dataclass, replace
from datetime import datetime

from pushserver.state.collecting import collect
from pushserver.state.facts import Facts
from pushserver.state.hour import Hour, read_hour
from pushserver.state.lights import Light, lights
from pushserver.state.memory import recall, remember


@dataclass(frozen=True, slots=True)
class Look:
    """The facts of one moment, the hour before it, and the lights."""

    facts: Facts
    hour: Hour
    lights: list[Light]

    def lights_of(self, *ids: str) -> list[Light]:
        """Return the lights with these ids, as the dashboard shows them."""
        return [light for light in self.lights if light.id in ids]


def look(*, now: datetime) -> Look:
    """Collect the facts, decide the lights, and remember them."""
    hour = read_hour(now)
    memory = recall(now=now)
    facts = replace(collect(hour, now=now), before=memory.levels)
    return Look(facts, hour, remember(lights(facts), memory, now=now))
