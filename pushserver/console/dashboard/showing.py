"""Compose the dashboard, and the part of it that it loads again every few seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from kit.admin.labels import Family
from kit.admin.times import span
from pushserver.console.dashboard.figures import ErrorClass, error_classes, figures
from pushserver.console.dashboard.pages import url_of
from pushserver.console.documentation import RUNBOOKS
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
# The states that notifications end in, as people ask for them.
ENDS = ("delivered", "dead_token", "undeliverable", "unconfirmed", "expired", "withdrawn", "coalesced")
DELIVERED = "delivered"
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
    def runbook(self) -> str:
        """Return the name of the page of the documentation that says what to do step by step."""
        return f"{RUNBOOKS}/{self.light.runbook}"

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
    yesterday: str
    url: str


@dataclass(frozen=True, slots=True)
class EndRow:
    """How many notifications ended in a state, in words, and the address of those of the last hour."""

    state: str
    number: str
    yesterday: str
    url: str


def lamps_of(lights: Sequence[Light], user: Any) -> list[Lamp]:
    """Return these lights as this person sees them."""
    return [
        Lamp(
            light,
            url_of(light.finding.page, user, **dict(light.finding.narrowed)),
            url_of(Page.INCIDENTS, user, light__exact=light.id),
        )
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
        "tiles": list(_tiles(seen, user)),
        "figures": figures(seen.hour, has_xmpp=seen.facts.xmpp is not None),
        "errors": list(_errors(seen, user)),
        "ends": list(_ends(seen, user)),
        "hour": span(*seen.hour.span),
        "tries": count(seen.hour.total().total()),
        "refresh_seconds": REFRESH_SECONDS,
    }


def _tiles(seen: Look, user: Any) -> Iterator[Tile]:
    facts = seen.facts
    levels = queue_levels(facts)
    for light_id, title, waiting, word, page in (
        ("inbox", "Oldest envelope in the inbox", facts.inbox, "waiting", Page.INBOX),
        ("delivery", "Longest due notification", facts.due, "open", Page.OPEN),
        ("replies", "Oldest reply in the outbox", facts.outbox, "waiting", Page.OUTBOX),
    ):
        url = url_of(page, user)
        age = duration(waiting.oldest_seconds)
        number = f"{waiting.number if waiting.count else 'none'} {word}"
        if facts.is_database_slow:
            age = "not known"
            number = "PostgreSQL is slow"
        yield Tile(light_id, title, age, number, LOOKS[levels[light_id]][0], url)


def _errors(seen: Look, user: Any) -> Iterator[ErrorRow]:
    """Yield a row for each error class. Its list has the attempts that were counted, and no others."""
    for found in error_classes(seen.hour)[:MAX_ERROR_CLASSES]:
        query = {"outcome__exact": found.outcome, "during": span(*seen.hour.span)}
        query |= {"code__exact": found.code} if found.code else {}
        url = url_of(Page.ATTEMPTS, user, **query)
        yesterday = seen.hour.yesterday
        before = yesterday.tries.get((found.outcome, found.code), 0) if yesterday else None
        yield ErrorRow(found, count(found.number), percent(found.share), count(before), url)


def _ends(seen: Look, user: Any) -> Iterator[EndRow]:
    """Yield a row for each state that notifications ended in, now or yesterday, and for delivered in any case."""
    before = seen.hour.yesterday.ended if seen.hour.yesterday else None
    hour = span(*seen.hour.span)
    for state in ENDS:
        number = seen.hour.ended.get(state, 0)
        if number or (before or {}).get(state) or state == DELIVERED:
            is_delivered = state == DELIVERED
            url = (
                url_of(Page.ATTEMPTS, user, outcome__exact=DELIVERED, during=hour)
                if is_delivered
                else url_of(Page.ENDED, user, state__exact=state, during=hour)
            )
            yield EndRow(state, count(number), count(before.get(state, 0) if before is not None else None), url)
