"""Judges that several kinds of indicators share: of a queue, a table that fills, a canary, and one of several servers.

The module does no I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from pushserver.console.checks.peers import Peer
from pushserver.console.health.verdicts import Facts, Page, State, Verdict, above, duration

# The gauges of `/metrics` count waiting rows up to this number.
MAX_COUNTED = 100_000
# Share of the limit of a table from which it is yellow.
FILLING_FROM = 0.8


# Queues ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Waiting:
    """The number of waiting rows, and the seconds for which the oldest of them has been due."""

    count: int = 0
    oldest_seconds: float = 0.0

    @property
    def number(self) -> str:
        """Return the number as text; counting stops at `MAX_COUNTED`."""
        return f"{self.count:,}{' or more' if self.count >= MAX_COUNTED else ''}"

    @property
    def sentence(self) -> str:
        if not self.count:
            return "empty"
        return f"{self.number} waiting, the oldest for {duration(self.oldest_seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue, judged by the age of its oldest row, with limits in seconds. Its `Waiting` is the fact ``name``.

    ``count`` and ``age`` are the names of its gauges. ``subject`` names what users get late. With a ``title`` it has a
    tile on the dashboard: ``word`` is the state of the rows there, and ``page`` lists them, if it is not that of the
    kind. ``words`` makes the sentence.
    """

    name: str
    count: str = ""
    age: str
    red: float
    yellow: float
    subject: str
    first_step: str
    words: Callable[[Waiting], str] = lambda waiting: waiting.sentence
    title: str = ""
    word: str = "waiting"
    page: Page | None = None

    def state(self, waiting: Waiting | None) -> State:
        return above(waiting.oldest_seconds, red=self.red, yellow=self.yellow) if waiting else State.GREY

    def __call__(self, facts: Facts) -> Verdict:
        waiting: Waiting = facts[self.name]
        state, seconds = self.state(waiting), waiting.oldest_seconds
        if state == State.GREEN:
            return Verdict(state, self.words(waiting))
        since, late = facts["now"] - timedelta(seconds=seconds), f"{self.subject} are {duration(seconds)} late"
        return Verdict(state, self.words(waiting), self.first_step, since, late=late)


# Tables that clients fill ---------------------------------------------------------------------------------------------
class Expiring(Protocol):
    """A mass expiry that waits for the permission of an operator: ``count`` of ``total`` rows."""

    count: int
    total: int
    found_at: datetime


class Filled(NamedTuple):
    """The number of rows in a table, and its limit."""

    stored: int
    limit: int
    expiring: Expiring | None = None


def filling(name: str, *, setting: str, rows: str) -> Callable[[Facts], Verdict]:
    """Return the judge of a table by a mass expiry that waits, and then by its size. Its `Filled` is the fact ``name``.

    ``setting`` has the limit, and ``rows`` is the name of the rows in `manage.py allow_expiry`.
    """

    def judge(facts: Facts) -> Verdict:
        stored, limit, expiring = facts[name]
        if expiring:
            sentence = (
                f"{expiring.count:,} of {expiring.total:,} would expire at once, and wait until an operator allows it"
            )
            first_step = (
                "Is the clock of PostgreSQL's host right, and were pushes delivered in the last months? If these rows "
                f"are really unused: `manage.py allow_expiry {rows}`."
            )
            return Verdict(State.YELLOW, sentence, first_step, expiring.found_at)
        sentence = f"{stored:,} of {limit:,} are stored"
        if stored < FILLING_FROM * limit:
            return Verdict(State.GREEN, sentence)
        first_step = (
            f"Raise {setting} if they are real. At the limit, new phones replace those to which nothing was ever "
            "delivered."
        )
        return Verdict(State.YELLOW, sentence, first_step)

    return judge


# Canaries -------------------------------------------------------------------------------------------------------------
# The push of a dry run ends at the gateway, and belongs to no app.
LIMITS = "; a dry run up to the gateway: Apple, Google and halted apps are not tested"


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The result of the last round trip, as the status cache keeps it. A dry run ends at the gateway.

    ``cause`` is empty when all links held. ``words`` is a text for operators about the broken link, if there is one.
    """

    cause: str
    words: str
    total_ms: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """The facts about one canary. ``is_expected`` says that the settings schedule it."""

    is_expected: bool = False
    last: RoundTrip | None = None


def canary(name: str) -> Callable[[Facts], Verdict]:
    """Return the judge of a canary by its last round trip. Its `CanaryFacts` are the fact ``name``."""

    def judge(facts: Facts) -> Verdict:
        known: CanaryFacts = facts.cached(name)
        last = known.last
        if last and last.cause:
            first_step = "Messages of real clients fail at this link too. The page of the run has the details."
            late = f"A test message does not get through: {last.words}"
            return Verdict(State.RED, f"broken: {last.words}", first_step, late=late)
        if last:
            limits = LIMITS if last.is_dry_run else ""
            return Verdict(State.GREEN, f"{last.words}, {last.total_ms:,} ms in all{limits}")
        if known.is_expected:
            first_step = "Is there a worker for the queue `canary`, and beat?"
            return Verdict(State.YELLOW, "made no round trip lately", first_step)
        return Verdict(State.OFF, "not set up (CANARY_PERIOD_SECONDS)")

    return judge


# Servers of which each can do the work of all -------------------------------------------------------------------------
def of_peers(peers: Sequence[Peer], *, up: str, down: str, first_step: str, headline: str) -> list[Verdict]:
    """Judge each peer. One that is down is red only if no other one is up; then users miss what ``headline`` says.

    ``up`` and ``down`` are the sentences, and ``first_step`` is for a peer that is down.
    """
    is_any_up = any(peer.is_up for peer in peers)
    state, headline = (State.YELLOW, "") if is_any_up else (State.RED, headline)
    return [
        of_config(peer, up) if peer.is_up else Verdict(state, down, first_step, subject=peer.host, headline=headline)
        for peer in peers
    ]


def of_config(peer: Peer, up: str) -> Verdict:
    """Judge a peer that is up by whether its configuration deviates, or was not checked recently."""
    if peer.complaints:
        (first, since), *others = peer.complaints
        sentence = f"{first.problem} (and {len(others)} more)" if others else first.problem
        return Verdict(State.YELLOW, sentence, first.action, since, peer.host)
    if not peer.is_watched:
        sentence = f"{up}; its configuration was not checked lately"
        first_step = "Is there a worker for the queue `maintenance`, and beat?"
        return Verdict(State.YELLOW, sentence, first_step, subject=peer.host)
    return Verdict(State.GREEN, up, subject=peer.host)
