"""Facts and verdicts: what is known at one moment, and what it says about one part of the server. It does no I/O.

`asking`, `stored` and the parts read the facts into one dict. A `Kind` of indicator has a function that makes verdicts
of them. The dashboard, `/readyz`, the API's `status`, `/metrics`, incidents and alerts use the verdicts, and judge
nothing themselves.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import Any

# Number of indicators at the top of the dashboard.
FIRST = 3
REDIS_DOWN = "not known while Redis is away"
DATABASE_SILENT = "not known while PostgreSQL does not answer in time"


class State(StrEnum):
    """The state of an indicator. The value is the word beside the colour.

    Red means that messages are late or lost now, or will be within hours. Yellow means that an operator should look at
    it, but not before the morning.
    """

    RED = "act now"
    YELLOW = "look at it"
    GREEN = "fine"
    GREY = "not known"
    OFF = "off"


BAD = (State.RED, State.YELLOW)
# The value of the gauge by state. An indicator that is GREY has none.
VALUES: Mapping[State, int] = {State.RED: 2, State.YELLOW: 1, State.GREEN: 0, State.OFF: 0}


class Group(StrEnum):
    """A heading of the dashboard."""

    SERVER = "Server"
    IN = "Messages in"
    OUT = "Pushes and replies out"
    WATCH = "Watching"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console, by the name of its URL. ``permission`` is empty for a page that all staff may open."""

    title: str
    url_name: str
    permission: str = ""
    query: str = ""


def rows(title: str, model: str, query: str = "") -> Page:
    """Return the page of a list of rows. ``model`` is its label in lower case, such as `notifications.attempt`."""
    app_label, model_name = model.split(".")
    return Page(title, f"admin:{app_label}_{model_name}_changelist", f"{app_label}.view_{model_name}", query)


class NotKnownError(Exception):
    """A fact is missing. The message is the sentence of the indicators that need it."""


class Facts(dict[str, Any]):
    """Everything that is known at one moment, by name. A fact that only one kind of indicator needs has its id."""

    def __missing__(self, name: str) -> Any:
        """Raise NotKnownError: what is not there could not be read from the database."""
        raise NotKnownError(DATABASE_SILENT)

    def cached(self, name: str) -> Any:
        """Return a fact that is kept in Redis. Raises NotKnownError while Redis is away."""
        if self["broker"]:
            raise NotKnownError(REDIS_DOWN)
        return self[name]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of indicator. ``id`` is stable: metrics, alerts, incidents and pages refer to it.

    ``runbook`` is the name of the page in `docs/runbooks`, and ``yellow_runbook`` that for yellow, if it has its own.
    ``judge`` makes a verdict of the facts, or one for each of several servers. ``page`` is the page of the console that
    shows the subject. While an indicator with ``decides_readiness`` is red, no message would get through, and the
    server is not ready.

    A red indicator explains a bad one whose kind has its kind's id in ``follows``. A group in ``follows`` stands for
    the kinds of that group with ``concerns_all``, those that affect all messages.
    """

    id: str
    group: Group
    name: str
    runbook: str
    judge: "Callable[[Facts], Verdict | Iterable[Verdict]]"
    page: Page | None = None
    yellow_runbook: str = field(default="", kw_only=True)
    decides_readiness: bool = field(default=False, kw_only=True)
    concerns_all: bool = field(default=False, kw_only=True)
    follows: tuple[str, ...] = field(default=(), kw_only=True)

    def explains(self, other: "Kind") -> bool:
        """Return whether a red indicator of this kind explains a bad one of the other kind."""
        return self.id in other.follows or (self.concerns_all and self.group in other.follows)

    def runbook_of(self, state: str) -> str:
        """Return the name of the runbook for a state."""
        return (state == State.YELLOW and self.yellow_runbook) or self.runbook

    def verdicts(self, facts: Facts) -> "list[Verdict]":
        """Return the verdicts of this kind. Where a fact is missing, it is a grey one."""
        try:
            found = self.judge(facts)
            each = [found] if isinstance(found, Verdict) else list(found)
        except NotKnownError as missing:
            each = [Verdict(State.GREY, str(missing))]
        return [replace(verdict, kind=self) for verdict in each]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one part of the server, with a ``sentence`` about it, and a ``first_step`` when it is bad.

    ``subject`` is the host, where several servers have an indicator of one kind. ``own_page`` replaces the page of the
    kind, and ``during`` limits its list to the period of the sentence. ``headline`` names what users do not get, and
    ``late`` what they get late; the first line of the dashboard shows the first of them. Without both, messages get
    through in spite of the fault. ``first_step`` may have commands between backticks. ``cause`` is the id of the
    indicator that explains this one, and ``owner`` the account of the operator who takes care of it.
    """

    state: State
    sentence: str
    first_step: str = ""
    since: datetime | None = None
    subject: str = ""
    own_page: Page | None = None
    headline: str = ""
    late: str = ""
    during: tuple[datetime, datetime] | None = None
    cause: str = ""
    owner: str = ""
    kind: Kind = Kind("", Group.SERVER, "", "", lambda _facts: ())  # `Kind.verdicts` enters its own

    @property
    def id(self) -> str:
        return f"{self.kind.id}-{self.subject}" if self.subject else self.kind.id

    @property
    def name(self) -> str:
        return f"{self.kind.name} {self.subject}" if self.subject else self.kind.name

    @property
    def page(self) -> Page | None:
        return self.own_page or self.kind.page

    @property
    def is_bad(self) -> bool:
        return self.state in BAD

    @property
    def makes_unready(self) -> bool:
        return self.kind.decides_readiness and self.state == State.RED


def to_json(indicators: Sequence[Verdict]) -> dict[str, Any]:
    """Return indicators and the readiness of the server, as `/readyz` and the API show them."""
    return {"status": "ready" if is_ready(indicators) else "not ready", "indicators": list(map(_to_json, indicators))}


def without_hosts(indicators: Sequence[Verdict]) -> list[Verdict]:
    """Return the indicators with numbers in place of hosts, for public answers."""
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(1))
    return [
        replace(found, cause="", subject=found.subject and str(next(numbers[found.kind.id]))) for found in indicators
    ]


def _to_json(indicator: Verdict) -> dict[str, Any]:
    own = {name: getattr(indicator, name) for name in ("id", "state", "since", "sentence", "first_step", "cause")}
    runbook = indicator.kind.runbook_of(indicator.state)
    return own | {"runbook": runbook, "decides_readiness": indicator.kind.decides_readiness}


def is_ready(indicators: Sequence[Verdict]) -> bool:
    """Return whether no indicator makes the server unready."""
    return not any(indicator.makes_unready for indicator in indicators)


def dated(indicators: Sequence[Verdict], since: Mapping[str, datetime]) -> list[Verdict]:
    """Return the indicators. A bad one without a time of its own gets the time of its id in ``since``."""
    return [
        replace(found, since=since.get(found.id)) if found.is_bad and found.since is None else found
        for found in indicators
    ]


def explained(indicators: Sequence[Verdict]) -> list[Verdict]:
    """Return the indicators. Each bad one gets as ``cause`` the id of the first one that explains it.

    If that one has itself a cause, both get the same. No kind may follow from itself, not even through others.
    """
    red = [found for found in indicators if found.state == State.RED]
    known = {found.id: found for found in indicators}

    def cause_of(indicator: Verdict) -> str:
        explaining = (other.id for other in red if other.kind.explains(indicator.kind))
        cause = indicator.cause or next(explaining, "")
        return (cause_of(known[cause]) if cause in known else "") or cause

    return [replace(found, cause=cause_of(found)) if found.is_bad else found for found in indicators]


def worst(indicators: Sequence[Verdict], *, first: int = FIRST) -> list[Verdict]:
    """Return the ``first`` bad indicators, red before yellow, without those that another one explains."""
    bad = (found for found in indicators if found.is_bad and not found.cause)
    return sorted(bad, key=lambda found: BAD.index(found.state))[:first]


def overall(indicators: Sequence[Verdict]) -> tuple[State, str]:
    """Return the state of the whole server and a sentence about it, by an indicator of that state."""
    bad = worst(indicators, first=len(indicators))
    red, yellow = (sum(found.state == state for found in bad) for state in BAD)
    state = State.RED if red else State.YELLOW if yellow else State.GREEN
    if state == State.GREEN:
        return state, "Messages get through, and nothing needs you"
    causes = {found.id for found in bad if found.state == state}
    leading = [found for found in indicators if found.state == state and (found.cause or found.id) in causes]
    headline = next(filter(None, [*(found.headline for found in leading), *(found.late for found in leading)]), "")
    counts = ", ".join(f"{number} {word}" for number, word in ((red, "urgent"), (yellow, "can wait")) if number)
    return state, f"{headline}. {counts}" if headline else f"Messages get through; {counts}"


def last_hour(now: datetime) -> tuple[datetime, datetime]:
    return now - timedelta(hours=1), now + timedelta(seconds=1)


def above(figure: float, *, red: float, yellow: float) -> State:
    """Return the state of a figure: red or yellow above these limits, and otherwise green."""
    return State.RED if figure > red else State.YELLOW if figure > yellow else State.GREEN


def duration(seconds: float) -> str:
    """Return a duration in a single unit, such as "3 min"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
