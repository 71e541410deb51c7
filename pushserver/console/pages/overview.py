"""The dashboard, first page of the console: state of each link of the chain, first steps, and charts (`figures`).

The page loads its changing part again every REFRESH_SECONDS.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from kit.display import counted
from notifications.models import Notification
from pushserver.console.health.history import DELIVERED, PERIODS, RECENT, Counts, Figure, tries_of
from pushserver.console.health.indicators import ATTEMPTS_PAGE, ENDED_PAGE, INCIDENTS_PAGE, kinds_of
from pushserver.console.health.judges import Queue
from pushserver.console.health.snapshot import Snapshot, take_snapshot
from pushserver.console.health.traffic import DAY, MINUTE
from pushserver.console.health.verdicts import Group, Page, State, Verdict, duration, overall, worst
from pushserver.console.models import Incident
from pushserver.console.pages.documentation import RUNBOOKS
from pushserver.console.pages.figures import hour_figures, trend_figures
from pushserver.console.pages.labels import ENDS, beyond
from pushserver.console.parts import parts_in_use
from pushserver.console.reports.formats import count, percent
from pushserver.console.toolkit.labels import Family
from pushserver.console.toolkit.times import span

REFRESH_SECONDS = 2
MAX_ERROR_CLASSES = 10
MAX_INCIDENTS = 500  # of the last 24 hours
# Colour and icon of each state.
LOOKS = {
    State.RED: (Family.BAD, "error"),
    State.YELLOW: (Family.CAUTION, "warning"),
    State.GREEN: (Family.GOOD, "check_circle"),
    State.GREY: (Family.QUIET, "help"),
    State.OFF: (Family.QUIET, "do_not_disturb_on"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """An indicator as one person sees it, with its effects. ``url`` is empty if this person may open no page about it.

    ``incidents`` has those of the last 24 hours until ``now``. It is None where they are not known, and for people who
    may not see them.
    """

    indicator: Verdict
    url: str
    history_url: str
    effects: "Sequence[Shown]"
    incidents: Sequence[Incident] | None
    now: datetime

    @property
    def family(self) -> Family:
        return LOOKS[self.indicator.state][0]

    @property
    def icon(self) -> str:
        return LOOKS[self.indicator.state][1]

    @property
    def incident(self) -> Incident | None:
        """Return the incident that goes on."""
        return next((incident for incident in self.incidents or () if incident.ended_at is None), None)

    @property
    def day(self) -> "Day | None":
        return None if self.incidents is None else Day(self.incidents, self.now)

    @property
    def runbook(self) -> str:
        """Return the name of the runbook page in the documentation."""
        return f"{RUNBOOKS}/{self.indicator.kind.runbook_of(self.indicator.state)}"

    @property
    def time_id(self) -> str:
        return f"since-{self.indicator.id}"

    @property
    def worst_time_id(self) -> str:
        return f"worst-since-{self.indicator.id}"


class Day(NamedTuple):
    """The bar of the last 24 hours of one or several indicators."""

    incidents: Sequence[Incident]
    now: datetime

    @property
    def words(self) -> str:
        number = counted(len(self.incidents), "incident") if self.incidents else "no incident"
        return f"{number} in 24 hours"

    @property
    def times(self) -> Iterator[tuple[Family, int, int]]:
        """Yield the colour of each incident, its first minute, and its minutes."""
        for incident in self.incidents:
            first = max(0, (incident.began_at - self.now + DAY) // MINUTE)
            last = ((incident.ended_at or self.now) - self.now + DAY) // MINUTE
            yield LOOKS[State(incident.worst)][0], first, max(6, last - first)


class ShownGroup(NamedTuple):
    """A heading: indicators that are bad or not known, and those that are folded."""

    group: Group
    open: Sequence[Shown]
    folded: Sequence[Shown]
    words: str
    day: Day | None


def url_of(page: Page | None, user: Any, **query: str) -> str:
    """Return the URL of a page, or an empty text for a person who may not open it."""
    if page is None or (page.permission and not user.has_perm(page.permission)):
        return ""
    narrowed = "&".join(part for part in (page.query, urlencode(query)) if part)
    return f"{reverse(page.url_name)}{f'?{narrowed}' if narrowed else ''}"


def shown_to(user: Any, seen: Snapshot) -> list[Shown]:
    """Return the indicators as this user may see them. While PostgreSQL is slow, no page waits for the incidents."""
    now, may_see = seen.facts["now"], user.has_perm(INCIDENTS_PAGE.permission)
    incidents = _recent_incidents(now) if seen.is_noted and may_see else None

    def shown(found: Verdict) -> Shown:
        history_url = url_of(INCIDENTS_PAGE, user, indicator__exact=found.id)
        effects = [shown(other) for other in seen.indicators if other.cause == found.id]
        own = None if incidents is None else incidents.get(found.id, ())
        return Shown(found, _url(found, user), history_url, effects, own, now)

    return [shown(found) for found in seen.indicators]


def _recent_incidents(now: datetime) -> Mapping[str, Sequence[Incident]]:
    """Return the incidents of the last 24 hours by indicator, first those that go on, then the last that ended."""
    found: dict[str, list[Incident]] = {}
    recent = Incident.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - DAY))
    for incident in recent.order_by("-ended_at", "-began_at")[:MAX_INCIDENTS]:  # PostgreSQL has NULL first
        found.setdefault(incident.indicator, []).append(incident)
    return found


def _url(indicator: Verdict, user: Any) -> str:
    """Return the URL of the page of an indicator. A list shows the period that the sentence of the indicator counts."""
    during = {"during": span(*indicator.during)} if indicator.during else {}
    return url_of(indicator.page, user, **during)


def status_page(user: Any, last: str = "") -> dict[str, Any]:
    """Return the context of the template for this user, with charts of the ``last`` period."""
    seen = take_snapshot(now=timezone.now())
    now = seen.facts["now"]
    shown = shown_to(user, seen)
    period = next((period for period in PERIODS if period.name == last), PERIODS[0])
    state, sentence = overall(seen.indicators)
    first = worst(seen.indicators)
    return {
        "now": now,
        "period": period,
        "periods": PERIODS,
        "trend": trend_figures(RECENT[period].get(), user) if seen.is_noted else [],
        "may_acknowledge": user.has_perm("pushserver.operate_incident"),
        "verdict": sentence,
        "family": LOOKS[state][0],
        "state": state,
        "history_url": url_of(INCIDENTS_PAGE, user),
        "icon": LOOKS[state][1],
        "worst": [one for found in first for one in shown if one.indicator is found],
        "groups": [_of_group(group, shown, now) for group in Group],
        "tiles": list(_tiles(seen, user)),
        "figures": hour_figures(seen.hour, {part.name: part.label for part in parts_in_use() if part.is_bridge}),
        "errors": list(_errors(seen, user)),
        "ends": list(_ends(seen, user)),
        "beyond": [
            {"words": beyond(each.effect, each.limit), "figures": map(count, each[2:])} for each in seen.hour.beyond
        ],
        "hour": span(*seen.hour.counts.span),
        "tries": count(tries_of(seen.hour.counts).total()),
        "refresh_seconds": REFRESH_SECONDS,
    }


def _of_group(group: Group, shown: Sequence[Shown], now: datetime) -> ShownGroup:
    """Return a group. An indicator that another one explains stands beneath that, wherever it is."""
    own = [one for one in shown if one.indicator.kind.group == group and not one.indicator.cause]
    folded = [one for one in own if one.indicator.state in {State.GREEN, State.OFF}]
    numbers = Counter(one.indicator.state for one in folded)
    words = ", ".join(f"{number} {state}" for state, number in numbers.items())
    known = [one.incidents for one in folded if one.incidents is not None]
    day = Day([*chain.from_iterable(known)], now) if known else None
    return ShownGroup(group, [one for one in own if one not in folded], folded, words, day)


def _tiles(seen: Snapshot, user: Any) -> Iterator[dict[str, str]]:
    """Yield a tile for each queue that has one. The figures are unknown while PostgreSQL does not count in time."""
    for kind in kinds_of(seen.facts["parts"]):
        queue = kind.judge
        if not isinstance(queue, Queue) or not queue.title:
            continue
        waiting = seen.facts.get(kind.id)
        age = duration(waiting.oldest_seconds) if waiting else "not known"
        number = f"{waiting.number if waiting.count else 'none'} {queue.word}" if waiting else "PostgreSQL is slow"
        family, url = LOOKS[queue.state(waiting)][0], url_of(queue.page or kind.page, user)
        yield {"id": kind.id, "title": queue.title, "age": age, "number": number, "family": family, "url": url}


def _errors(seen: Snapshot, user: Any) -> Iterator[dict[str, str]]:
    """Yield a row for each outcome and code that did not deliver, the most frequent first. Its link leads to exactly
    the attempts that were counted.
    """
    tries, yesterday = tries_of(seen.hour.counts), seen.hour.yesterday
    earlier = tries_of(yesterday) if yesterday else None
    failed = [row for row in tries.most_common() if row[0][0] != DELIVERED]
    for (outcome, code), number in failed[:MAX_ERROR_CLASSES]:
        query = {"outcome__exact": outcome, "during": span(*seen.hour.counts.span)}
        query |= {"code__exact": code} if code else {}
        url = url_of(ATTEMPTS_PAGE, user, **query)
        before = None if earlier is None else earlier[outcome, code]
        figures = {"number": count(number), "share": percent(number / tries.total()), "yesterday": count(before)}
        yield {"outcome": outcome, "code": code, "url": url, **figures}


def _ends(seen: Snapshot, user: Any) -> Iterator[dict[str, str]]:
    """Yield a row for each state that notifications ended in today or yesterday, and always one for delivered."""
    ended, before = (_ended(counts) for counts in (seen.hour.counts, seen.hour.yesterday))
    hour = span(*seen.hour.counts.span)
    for state in ENDS:
        number, earlier = ended.get(state, 0), before.get(state, 0) if seen.hour.yesterday else None
        is_delivered = state == Notification.State.DELIVERED
        if number or earlier or is_delivered:
            page, column = (ATTEMPTS_PAGE, "outcome") if is_delivered else (ENDED_PAGE, "state")
            url = url_of(page, user, **{f"{column}__exact": state, "during": hour})
            yield {"state": state, "number": count(number), "yesterday": count(earlier), "url": url}


def _ended(counts: Counts | None) -> Mapping[str, int]:
    """Return how many notifications ended in each state."""
    return {key.outcome: number for key, number in counts.total(Figure.ENDS).items()} if counts else {}
