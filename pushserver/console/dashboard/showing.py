"""Compose the dashboard, and the part of it that it loads again every few seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from kit.admin.labels import Family
from pushserver.console.dashboard.figures import ErrorClass, error_classes, figures
from pushserver.console.dashboard.pages import url_of
from pushserver.state.lights import (
    Finding,
    Group,
    Level,
    Light,
    Page,
    duration,
    queue_levels,
    verdict,
    worst,
)
from pushserver.state.looking import Look, look
from spark_reports.console.formats import count, percent

REFRESH_SECONDS = 5
MAX_ERROR_CLASSES = 10
# The columns stand side by side where there is room.
COLUMNS = ((Group.SERVER, Group.WATCH), (Group.IN,), (Group.OUT,))
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
    """A light as one person sees it. ``url`` is empty when there is no page that this person may open."""

    light: Light
    url: str
    history_url: str

    @property
    def finding(self) -> Finding:
        return self.light.finding

    @property
    def family(self) -> Family:
        return LOOKS[self.finding.level][0]

    @property
    def icon(self) -> str:
        return LOOKS[self.finding.level][1]

    @property
    def action(self) -> SafeString:
        """Return what to do as HTML. Commands and names of queues stand between backticks in the text."""
        parts = enumerate(self.finding.action.split("`"))
        return format_html_join("", "{}", ((format_html("<code>{}</code>", p) if n % 2 else p,) for n, p in parts))

    @property
    def time_id(self) -> str:
        return f"since-{self.light.id}"

    @property
    def worst_time_id(self) -> str:
        return f"worst-since-{self.light.id}"


@dataclass(frozen=True, slots=True)
class Tile:
    """The age of the oldest row of a queue, and how many rows there are."""

    id: str
    title: str
    age: str
    number: str
    family: Family
    url: str


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """An error class with its figures in words and the address of its attempts."""

    found: ErrorClass
    number: str
    share: str
    url: str


def lamps_of(lights: Sequence[Light], user: Any) -> list[Lamp]:
    """Return these lights as this person sees them."""
    return [
        Lamp(light, url_of(light.finding.page, user), url_of(Page.INCIDENTS, user, light__exact=light.id))
        for light in lights
    ]


def board(user: Any) -> dict[str, Any]:
    """Return what the template shows to this person."""
    seen = look(now=timezone.now())
    lamps = lamps_of(seen.lights, user)
    in_short = verdict(seen.lights)
    first = worst(seen.lights)
    return {
        "now": seen.facts.now,
        "verdict": in_short.words,
        "family": LOOKS[in_short.level][0],
        "level": in_short.level,
        "history_url": url_of(Page.INCIDENTS, user),
        "icon": LOOKS[in_short.level][1],
        "worst": [lamp for light in first for lamp in lamps if lamp.light is light],
        "columns": [[(group, [lamp for lamp in lamps if lamp.light.group == group]) for group in c] for c in COLUMNS],
        "tiles": list(_tiles(seen, lamps)),
        "figures": figures(seen.hour, has_xmpp=seen.facts.xmpp is not None),
        "errors": list(_errors(seen, user)),
        "tries": count(seen.hour.total().total()),
        "refresh_seconds": REFRESH_SECONDS,
    }


def _tiles(seen: Look, lamps: list[Lamp]) -> Iterator[Tile]:
    facts = seen.facts
    levels = queue_levels(facts)
    for light_id, title, waiting, word in (
        ("inbox", "Oldest envelope in the inbox", facts.inbox, "waiting"),
        ("delivery", "Longest due notification", facts.due, "open"),
        ("replies", "Oldest reply in the outbox", facts.outbox, "waiting"),
    ):
        url = next(lamp.url for lamp in lamps if lamp.light.id == light_id)
        age = duration(waiting.oldest_seconds)
        number = f"{waiting.number if waiting.count else 'none'} {word}"
        if facts.is_database_slow:
            age = "not known"
            number = "PostgreSQL is slow"
        yield Tile(light_id, title, age, number, LOOKS[levels[light_id]][0], url)


def _errors(seen: Look, user: Any) -> Iterator[ErrorRow]:
    """Yield a row for each error class. Its list is narrowed by one column, because each has an index of its own."""
    for found in error_classes(seen.hour)[:MAX_ERROR_CLASSES]:
        query = {"code__exact": found.code} if found.code else {"outcome__exact": found.outcome}
        yield ErrorRow(found, count(found.number), percent(found.share), url_of(Page.ATTEMPTS, user, **query))
