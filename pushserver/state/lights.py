"""Decide which light each link of the chain shows, and which of them is worst. The module is pure: facts in, lights
out.

Red means that messages are late or lost now, or will be within hours. Yellow means that somebody should look at it, and
that it can wait for the morning. Where `docs/monitoring/alerts.yml` has an alarm for the same thing, red is what it
calls a page and yellow a ticket. The lights are in the order of causes: an earlier one may be the reason for a later
one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from pushserver.state.facts import Drain, Facts, Halted, Peer, RoundTrip, Store, Trouble, Waiting, Xmpp
from pushserver.state.runbooks import runbook


class Level(StrEnum):
    """A level of a light. The value is the word that stands beside the colour."""

    RED = "act now"
    YELLOW = "look at it"
    GREEN = "fine"
    GREY = "not known"
    OFF = "off"


class Group(StrEnum):
    """A heading of the dashboard."""

    SERVER = "Server"
    IN = "Messages in"
    OUT = "Pushes and replies out"
    WATCH = "Watching"


class Page(StrEnum):
    """A page of the console where something is looked at or put right."""

    NODES = "Waku nodes"
    WATERMARKS = "Store watermarks"
    INBOX = "Envelopes that wait"
    DEAD_LETTERS = "Dead letters"
    DRAIN = "Drain"
    STUCK = "Stuck notifications"
    GORUSH = "gorush configuration"
    ATTEMPTS = "Attempts"
    UNKNOWN_ERRORS = "Unknown errors"
    CHANNELS = "Channels"
    TRIPPED = "Tripped channels"
    PAUSED = "Paused channels"
    OUTBOX = "Replies that wait"
    REPLIES = "Replies"
    REQUESTS = "Requests that wait"
    CANARY = "Canary"
    XMPP_CANARY = "XMPP canary"
    REPORTS = "Last night"
    RUNS = "Runs"
    XMPP_APPS = "XMPP apps"
    XMPP_DEVICES = "XMPP devices"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the case with one link, in ``words``, with what to do about it and the ``page`` where that is done."""

    level: Level
    words: str
    action: str = ""
    since: datetime | None = None
    page: Page | None = None

    @property
    def is_bad(self) -> bool:
        return self.level in BAD


@dataclass(frozen=True, slots=True)
class Light:
    """One link as it is shown. ``id`` is stable and becomes part of the page."""

    id: str
    group: Group
    name: str
    finding: Finding

    @property
    def runbook(self) -> str:
        """Return the name of the page that says what to do about it."""
        return runbook(self.id)


BAD = (Level.RED, Level.YELLOW)
WORST_FIRST = (*BAD, Level.GREEN)
DATABASE_IS_SLOW = Finding(Level.GREY, "not known while PostgreSQL is slow")
REDIS_IS_AWAY = Finding(Level.GREY, "not known while Redis is away")
# Limits in seconds, equal to those of the alarms where there is one.
INBOX_RED, INBOX_YELLOW = 30.0, 5.0
DUE_RED, DUE_YELLOW = 60.0, 10.0
OUTBOX_RED, OUTBOX_YELLOW = 30.0, 3.0  # clients wait for 3 s
OVERDUE_RED, OVERDUE_YELLOW = 10.0, 3.0
STORE_BEHIND = timedelta(minutes=1)  # it is read every few seconds, up to some seconds ago
BEAT_GONE = timedelta(minutes=3)  # a minute is counted within 15 s of its end
FAILING_RED, FAILING_YELLOW = 0.5, 0.1
FEW_TRIES = 20
FAILURES = frozenset({"transient", "ambiguous", "config"})  # a dead token or a bad payload is not an outage
LOST_REPLIES_SHARE = 0.05
FEW_REPLIES = 5
MANY_DEAD_LETTERS = 20
WORST = 3


def lights(facts: Facts) -> list[Light]:
    """Return the lights of all links, causes before effects."""
    return [
        Light("database", Group.SERVER, "PostgreSQL", database(facts)),
        Light("broker", Group.SERVER, "Redis", broker(facts)),
        Light("workers", Group.SERVER, "Workers", workers(facts)),
        Light("beat", Group.SERVER, "Beat", beat(facts)),
        *nodes(facts),
        *(Light(f"store-{s.host}", Group.IN, f"Store {s.host}", store(s, facts.now)) for s in facts.stores),
        Light("inbox", Group.IN, "Inbox", inbox(facts)),
        *([Light("xmpp", Group.IN, "XMPP", xmpp(facts, facts.xmpp))] if facts.xmpp else []),
        Light("delivery", Group.OUT, "Delivery", delivery(facts)),
        *gorushes(facts),
        Light("channels", Group.OUT, "Channels", channels(facts)),
        Light("results", Group.OUT, "Results at gorush", results(facts)),
        Light("replies", Group.OUT, "Replies", replies(facts)),
        Light("canary", Group.WATCH, "Canary", canary(facts)),
        *([Light("xmpp-canary", Group.WATCH, "XMPP canary", xmpp_canary(facts))] if facts.xmpp else []),
        Light("reports", Group.WATCH, "Reports", reports(facts)),
    ]


def worst(found: Sequence[Light]) -> list[Light]:
    """Return the three lights to begin with: red before yellow, causes before effects."""
    bad = [light for light in found if light.finding.is_bad]
    return sorted(bad, key=lambda light: BAD.index(light.finding.level))[:WORST]


def verdict(found: Sequence[Light]) -> Finding:
    """Return one finding for the whole server."""
    red, yellow = (sum(light.finding.level == level for light in found) for level in BAD)
    if red:
        rest = f", {yellow} can wait" if yellow else ""
        return Finding(Level.RED, f"{_things(red, 'needs', 'need')} somebody now{rest}")
    if yellow:
        return Finding(Level.YELLOW, f"Messages get through; {_things(yellow, 'is', 'are').lower()} to be looked at")
    return Finding(Level.GREEN, "Messages get through, and nothing needs you")


def _things(number: int, one: str, several: str) -> str:
    return f"One thing {one}" if number == 1 else f"{number} things {several}"


# Server ---------------------------------------------------------------------------------------------------------------
def database(facts: Facts) -> Finding:
    """Judge PostgreSQL by `/readyz`, and by whether it counts what waits in time."""
    if reason := facts.reasons.get("database"):
        return Finding(Level.RED, reason, "Run `manage.py migrate`, or repair PostgreSQL.")
    if facts.is_database_slow:
        action = "Look for long transactions and for whatever else keeps the server busy."
        return Finding(Level.RED, "takes too long to tell what waits", action)
    return Finding(Level.GREEN, "answers, migrations are applied")


def broker(facts: Facts) -> Finding:
    if reason := facts.reasons.get("broker"):
        action = "Start Redis, or correct REDIS_URL. Messages go their way meanwhile; nothing is done by the clock."
        return Finding(Level.RED, reason, action)
    return Finding(Level.GREEN, "answers")


def workers(facts: Facts) -> Finding:
    """Judge whether each queue has a worker. A missing one is red where messages need its queue."""
    if facts.is_redis_away:
        return REDIS_IS_AWAY
    away = [queue for queue in facts.queues if not queue.has_worker]
    if not away:
        return Finding(Level.GREEN, "every queue has one")
    level = Level.RED if any(queue.is_needed for queue in away) else Level.YELLOW
    names = [queue.name for queue in away]
    command = f"celery -A pushserver worker -Q {','.join(names)}"
    return Finding(
        level, f"nobody works on {_listed(names)}", f"Start `{command}`; the log of the one that ended says why."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def beat(facts: Facts) -> Finding:
    """Judge beat by what it last counted, because it has no heartbeat."""
    until = facts.counted_until
    if until is None:
        return Finding(Level.GREY, "has counted nothing yet")
    if facts.now - until <= BEAT_GONE:
        return Finding(Level.GREEN, "runs")
    if any(queue.name == "maintenance" and not queue.has_worker for queue in facts.queues):
        return Finding(Level.GREY, "not known while nobody works on maintenance")
    action = "Start `celery -A pushserver beat`: without it nothing is watched or forgotten, and no reports are made."
    return Finding(Level.RED, "has had nothing done since", action, until)


# Peers ----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PeerWords:
    """The words of a kind of peer. ``action`` is for one that is down."""

    up: str
    down: str
    action: str
    page: Page


NODE = PeerWords(
    "is read",
    "was not read for 15 seconds",
    "Is a bridge running (`manage.py run_waku_bridge`), and does the node answer?",
    Page.NODES,
)
GORUSH = PeerWords(
    "answers", "does not answer", "Start gorush, or correct GORUSH_URL. Pushes wait meanwhile.", Page.GORUSH
)


def nodes(facts: Facts) -> list[Light]:
    if not facts.nodes:
        finding = Finding(Level.RED, "no node is configured: nothing comes in", "Set WAKU_NODES.")
        return [Light("node", Group.IN, "Waku node", finding)]
    found = [(p.host, REDIS_IS_AWAY if facts.is_redis_away else peer(p, facts.nodes, NODE)) for p in facts.nodes]
    return [Light(f"node-{host}", Group.IN, f"Node {host}", finding) for host, finding in found]


def gorushes(facts: Facts) -> list[Light]:
    if not facts.gorush:
        finding = Finding(Level.RED, "no gorush is configured: nothing goes out", "Set GORUSH_URL.")
        return [Light("gorush", Group.OUT, "gorush", finding)]
    # Each gorush is asked whether it answers; the findings about its configuration are in Redis.
    seen = [Peer(p.host, p.is_up) for p in facts.gorush] if facts.is_redis_away else facts.gorush
    return [Light(f"gorush-{p.host}", Group.OUT, f"gorush {p.host}", peer(p, seen, GORUSH)) for p in seen]


def peer(one: Peer, all_of_them: Sequence[Peer], words: PeerWords) -> Finding:
    """Judge one peer. One that is down is red only when no other is up, because each can do the work of all."""
    if not one.is_up:
        level = Level.YELLOW if any(other.is_up for other in all_of_them) else Level.RED
        since = one.troubles[0].since if one.troubles else None
        return Finding(level, words.down, words.action, since, words.page)
    if one.troubles:
        return _troubled(one.troubles, words.page)
    if not one.is_watched:
        action = "Is there a worker for the queue `maintenance`, and beat?"
        said = f"{words.up}; its configuration was not looked at lately"
        return Finding(Level.YELLOW, said, action, page=words.page)
    return Finding(Level.GREEN, words.up, page=words.page)


def _troubled(troubles: Sequence[Trouble], page: Page) -> Finding:
    first = troubles[0]
    more = len(troubles) - 1
    words = f"{first.what} (and {more} more)" if more else first.what
    return Finding(Level.YELLOW, words, first.action, first.since, page)


# Messages in ----------------------------------------------------------------------------------------------------------
def store(one: Store, now: datetime) -> Finding:
    """Judge one store by the time up to which it was read, then by its configuration."""
    if one.read_up_to is None:
        return Finding(Level.YELLOW, "was never read", NODE.action, page=Page.WATERMARKS)
    if now - one.read_up_to > STORE_BEHIND:
        action = "Does the node have a store, and does it answer? What the live path loses is found there only."
        return Finding(Level.YELLOW, "is not read any further", action, one.read_up_to, Page.WATERMARKS)
    if one.troubles:
        return _troubled(one.troubles, Page.NODES)
    gaps = f"; {one.gaps} {'stretch' if one.gaps == 1 else 'stretches'} of the past still to be searched"
    return Finding(Level.GREEN, f"is read{gaps if one.gaps else ''}", page=Page.WATERMARKS)


def inbox(facts: Facts) -> Finding:
    """Judge the inbox by the age of its oldest envelope, then by the number of messages that could not be read."""
    if facts.is_database_slow:
        return DATABASE_IS_SLOW
    level = queue_levels(facts)["inbox"]
    if level in BAD:
        action = "Workers of the queue `turns` are away or too few, or wait for the database."
        return Finding(level, _waits(facts.inbox), action, _since(facts, facts.inbox.oldest_seconds), Page.INBOX)
    if facts.dead_letters >= MANY_DEAD_LETTERS:
        words = f"{facts.dead_letters} messages of the last hour could not be read"
        action = "Look at them: a new kind of client or node may speak a dialect that we do not know."
        return Finding(Level.YELLOW, words, action, page=Page.DEAD_LETTERS)
    return Finding(level, _waits(facts.inbox), page=Page.INBOX)


def xmpp(facts: Facts, found: Xmpp) -> Finding:
    """Judge XMPP by its connection, as `/readyz` does, then by whether there is an app to register devices in."""
    if facts.is_redis_away:
        return REDIS_IS_AWAY
    if reason := facts.reasons.get("xmpp"):
        action = "Is `manage.py run_xmpp_bridge` running? Its log and docs/xmpp.md say more."
        return Finding(Level.RED, reason, action, page=Page.XMPP_DEVICES)
    if not found.apps:
        return Finding(Level.YELLOW, "connected, but it serves no app", "Add the app.", page=Page.XMPP_APPS)
    return Finding(Level.GREEN, f"connected; {found.pushes:,} pushes in the last hour", page=Page.XMPP_DEVICES)


# What waits -----------------------------------------------------------------------------------------------------------
def queue_levels(facts: Facts) -> dict[str, Level]:
    """Return the level of the oldest row in each queue by the id of its light, which may be about something worse."""
    if facts.is_database_slow:
        return dict.fromkeys(("inbox", "delivery", "replies"), Level.GREY)
    return {
        "inbox": _limited(facts.inbox.oldest_seconds, red=INBOX_RED, yellow=INBOX_YELLOW),
        "delivery": _limited(facts.due.oldest_seconds, red=DUE_RED, yellow=DUE_YELLOW),
        "replies": _limited(facts.outbox.oldest_seconds, red=OUTBOX_RED, yellow=OUTBOX_YELLOW),
    }


def _limited(figure: float, *, red: float, yellow: float) -> Level:
    return Level.RED if figure > red else Level.YELLOW if figure > yellow else Level.GREEN


def _waits(waiting: Waiting) -> str:
    if not waiting.count:
        return "empty"
    return f"{waiting.number} waiting, the oldest for {duration(waiting.oldest_seconds)}"


def duration(seconds: float) -> str:
    """Return a duration in one unit, such as "3 min"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


def _since(facts: Facts, seconds: float) -> datetime:
    return facts.now - timedelta(seconds=seconds)


# Pushes and replies out -----------------------------------------------------------------------------------------------
def delivery(facts: Facts) -> Finding:
    """Judge delivery by its drain, else by the age of the longest due notification."""
    if facts.drain:
        return _draining(facts.drain, facts)
    if facts.is_database_slow:
        return DATABASE_IS_SLOW
    level = queue_levels(facts)["delivery"]
    seconds = facts.due.oldest_seconds
    if not seconds:
        return Finding(level, "nothing is overdue", page=Page.STUCK)
    words = f"the longest waiting notification has been due for {duration(seconds)}"
    if level not in BAD:
        return Finding(level, words, page=Page.STUCK)
    action = "Workers of the queue `turns` are away or too few, or gorush is slow."
    return Finding(level, words, action, _since(facts, seconds), Page.STUCK)


def _draining(drain: Drain, facts: Facts) -> Finding:
    """Judge a drain.

    An operator wanted it, but rows that have waited for half of their time to live may soon be lost.
    """
    level = Level.RED if facts.now - drain.since > facts.time_to_live / 2 else Level.YELLOW
    action = f"Start it again before what waits expires, {duration(facts.time_to_live.total_seconds())} after it came."
    return Finding(level, f"stopped by {drain.by}: {drain.why}", action, drain.since, Page.DRAIN)


def results(facts: Facts) -> Finding:
    """Judge gorush's results by the share of failures in the last minutes, then by errors that no rule knows."""
    total = sum(facts.tries.values())
    failed = {key: number for key, number in facts.tries.items() if key[0] in FAILURES}
    number = sum(failed.values())
    words = f"{number:,} of {total:,} tries failed in the last ten minutes"
    if not total:
        words = "no push was tried in the last ten minutes"
    level = _limited(number / max(total, 1), red=FAILING_RED, yellow=FAILING_YELLOW)
    if level in BAD and total >= FEW_TRIES:
        action = "docs/delivery.md says what each class means. An outage of Apple or Google needs patience only."
        return Finding(level, f"{words}, most of them {_most(failed)}", action, page=Page.ATTEMPTS)
    if facts.unknown_errors:
        words += f"; {facts.unknown_errors} {'error' if facts.unknown_errors == 1 else 'errors'} that no rule knows"
        action = "Give them a rule. Until then they count as transient."
        return Finding(Level.YELLOW, words, action, page=Page.UNKNOWN_ERRORS)
    return Finding(Level.GREEN, words, page=Page.ATTEMPTS)


def _most(tries: Mapping[tuple[str, str], int]) -> str:
    """Return the most frequent outcome and code in words."""
    outcome, code = max(tries, key=lambda key: tries[key])
    return f"{outcome} ({code})" if code else outcome


def channels(facts: Facts) -> Finding:
    if facts.halted:
        return _halted(facts.halted)
    if facts.running_channels:
        return Finding(Level.GREEN, f"{facts.running_channels} running", page=Page.CHANNELS)
    return Finding(Level.GREY, "nothing was delivered yet", page=Page.CHANNELS)


def _halted(found: Sequence[Halted]) -> Finding:
    first = min(found, key=_badness)
    more = len(found) - 1
    words = f"{first.name} is {'tripped' if first.is_tripped else 'paused'}: {first.reason or 'no reason given'}"
    words += f" (and {more} more halted)" if more else ""
    if not first.is_tripped:
        action = "Resume it when whoever paused it is done. What waits for it expires in time."
        return Finding(Level.YELLOW, words, action, first.since, Page.PAUSED)
    if not first.is_proven:
        action = "Nothing was ever delivered to it: is it an app of yours? If not, there is nothing to do."
        return Finding(Level.YELLOW, words, action, first.since, Page.TRIPPED)
    action = "Repair the set-up at Apple, Google or gorush; a probe that comes through starts it again."
    return Finding(Level.RED, words, action, first.since, Page.TRIPPED)


def _badness(channel: Halted) -> tuple[bool, bool, datetime]:
    """Return the sort key of a halted channel: tripped ones with users first, then paused ones, then those that
    strangers may have made up.
    """
    return not (channel.is_tripped and channel.is_proven), channel.is_tripped, channel.since


def replies(facts: Facts) -> Finding:
    """Judge replies by the worse of two ages, of replies that wait for a node and of requests that wait for an answer;
    after that by lost replies.
    """
    if facts.is_database_slow:
        return DATABASE_IS_SLOW
    lost = facts.lost_replies
    found = min((_outbox(facts), _overdue(facts)), key=lambda finding: WORST_FIRST.index(finding.level))
    if not found.is_bad and lost >= many_lost_replies(facts.replies):
        words = f"{lost:,} of the last hour may not have reached anybody"
        action = "The node that publishes has no peers, or the stores are behind: senders ask again."
        return Finding(Level.YELLOW, words, action, page=Page.REPLIES)
    return found


def many_lost_replies(replies: int) -> int:
    """Return how many lost replies of this many are too many."""
    return max(FEW_REPLIES, ceil(LOST_REPLIES_SHARE * replies))


def _outbox(facts: Facts) -> Finding:
    level = queue_levels(facts)["replies"]
    words = _waits(facts.outbox)
    if level not in BAD:
        return Finding(level, words, page=Page.OUTBOX)
    action = "Does a node take messages, and is there a worker for the queue `turns`?"
    return Finding(level, words, action, _since(facts, facts.outbox.oldest_seconds), Page.OUTBOX)


def _overdue(facts: Facts) -> Finding:
    seconds = facts.overdue_seconds
    level = _limited(seconds, red=OVERDUE_RED, yellow=OVERDUE_YELLOW)
    words = f"a request has waited for its answer for {duration(seconds)} too long"
    action = "Nobody answers: look for the workers of the queue `turns`."
    return Finding(level, words, action, _since(facts, seconds), Page.REQUESTS)


# Watching -------------------------------------------------------------------------------------------------------------
def canary(facts: Facts) -> Finding:
    """Judge the last round trip of the canary."""
    return _round_trip(facts, facts.canary, Page.CANARY, is_expected=facts.is_canary_expected)


def xmpp_canary(facts: Facts) -> Finding:
    """Judge the last round trip of the canary of XMPP."""
    return _round_trip(facts, facts.xmpp_canary, Page.XMPP_CANARY, is_expected=facts.is_xmpp_canary_expected)


def _round_trip(facts: Facts, last: RoundTrip | None, page: Page, *, is_expected: bool) -> Finding:
    if facts.is_redis_away:
        return REDIS_IS_AWAY
    if last and last.is_broken:
        action = "Messages of real clients break there, too. The page of the run says more."
        return Finding(Level.RED, f"broken: {last.words}", action, page=page)
    if last:
        return Finding(Level.GREEN, f"{last.words}, {last.total_ms:,} ms in all", page=page)
    if is_expected:
        action = "Is there a worker for the queue `canary`, and beat?"
        return Finding(Level.YELLOW, "made no round trip lately", action, page=page)
    return Finding(Level.OFF, "not set up (CANARY_PERIOD_SECONDS)", page=page)


def reports(facts: Facts) -> Finding:
    """Judge the reports by missing nights, then by anomalies, then by findings about the data."""
    found = facts.reports
    if found.is_missing:
        action = "Put right what the run says; it is made again by itself, or by hand from Last night."
        return Finding(Level.YELLOW, found.words, action, page=Page.RUNS)
    if found.anomalies:
        more = f" (and {len(found.anomalies) - 1} more)" if len(found.anomalies) > 1 else ""
        words = f"outside of its usual band: {found.anomalies[0]}{more}"
        action = "Look whether a release, an outage or a wrong set-up explains it."
        return Finding(Level.YELLOW, words, action, page=Page.REPORTS)
    if found.findings:
        words = f"{found.words} {found.findings} {'doubt' if found.findings == 1 else 'doubts'} about the data."
        return Finding(Level.YELLOW, words, "The page of the night says what does not add up.", page=Page.REPORTS)
    return Finding(Level.OFF if found.is_off else Level.GREEN, found.words, page=Page.REPORTS)
