"""The page, and the part of it that it loads again every few seconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from pushserver.console.dashboard.facts import Waiting
from pushserver.console.dashboard.figures import ErrorClass, error_classes, figures
from pushserver.console.dashboard.lights import Group, Level, Light, Page, duration, verdict, worst
from pushserver.console.dashboard.looking import Look, look
from pushserver.console.dashboard.pages import url_of
from registrations.console.labels import Family
from spark_reports.console.formats import percent

REFRESH_SECONDS = 5
MAX_ERROR_CLASSES = 10
# The colour and the picture beside each word.
LOOKS = {
    Level.RED: (Family.BAD, "error"),
    Level.YELLOW: (Family.DOUBT, "warning"),
    Level.GREEN: (Family.GOOD, "check_circle"),
    Level.GREY: (Family.QUIET, "help"),
    Level.OFF: (Family.QUIET, "do_not_disturb_on"),
}


@dataclass(frozen=True, slots=True)
class Lamp:
    """A light as one person sees it: with a link, if there is one that this person may follow."""

    light: Light
    url: str

    @property
    def family(self) -> Family:
        return LOOKS[self.light.level][0]

    @property
    def icon(self) -> str:
        return LOOKS[self.light.level][1]

    @property
    def time_id(self) -> str:
        return f"since-{self.light.id}"

    @property
    def worst_time_id(self) -> str:
        return f"worst-since-{self.light.id}"


@dataclass(frozen=True, slots=True)
class Tile:
    """How long the oldest of a queue has waited, on the colour of its light."""

    title: str
    age: str
    count: str
    lamp: Lamp


@dataclass(frozen=True, slots=True)
class ErrorRow:
    found: ErrorClass
    share: str
    url: str


def board(user: Any) -> dict[str, Any]:
    """What the template shows to this person."""
    seen = look(now=timezone.now())
    lamps = [Lamp(light, url_of(light.page, user)) for light in seen.lights]
    level, words = verdict(seen.lights)
    first = worst(seen.lights)
    return {
        "now": seen.facts.now,
        "verdict": Lamp(Light("verdict", Group.SERVER, "", level, words), ""),
        "worst": [lamp for light in first for lamp in lamps if lamp.light is light],
        "groups": [(group, [lamp for lamp in lamps if lamp.light.group == group]) for group in Group],
        "tiles": list(_tiles(seen, lamps)),
        "figures": figures(seen.hour),
        "errors": list(_errors(seen, user)),
        "tries": seen.hour.total().total(),
        "refresh_seconds": REFRESH_SECONDS,
    }


def _tiles(seen: Look, lamps: list[Lamp]) -> Iterator[Tile]:
    of = {lamp.light.id: lamp for lamp in lamps}
    facts = seen.facts
    yield _tile("Oldest envelope in the inbox", facts.inbox, of["inbox"], "waiting")
    yield _tile("Longest due notification", facts.due, of["delivery"], "open")
    yield _tile("Oldest reply in the outbox", facts.outbox, of["replies"], "waiting")


def _tile(title: str, waiting: Waiting, lamp: Lamp, word: str) -> Tile:
    count = f"{waiting.count:,} {word}" if waiting.count else f"none {word}"
    return Tile(title, duration(waiting.oldest_seconds), count, lamp)


def _errors(seen: Look, user: Any) -> Iterator[ErrorRow]:
    """The list has the newest first; it is narrowed by one column, as each has an index of its own."""
    for found in error_classes(seen.hour)[:MAX_ERROR_CLASSES]:
        query = {"code__exact": found.code} if found.code else {"outcome__exact": found.outcome}
        yield ErrorRow(found, percent(found.share), url_of(Page.ATTEMPTS, user, **query))
