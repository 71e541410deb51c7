"""Decide which light each link of the chain shows, and which of them is worst. The module is pure: facts in, lights
out.

Red means that messages are late or lost now, or will be within hours. Yellow means that somebody should look at it, and
that it can wait for the morning. Where `docs/monitoring/alerts.yml` has an alarm for the same thing, red is what it
calls a page and yellow a ticket. The lights are in the order of causes: an earlier one may be the reason for a later
one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from kit.admin.times import span
from notifications.gateways.gorush.advice import advice
from notifications.gateways.gorush.response import DRY_RUN
from notifications.messages import FAILURES
from notifications.standstill import DRAINED, Switch, headline, stops
from pushserver.state.facts import ChannelTries, Facts, Peer, RoundTrip, Store, Trouble, Waiting, Xmpp
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
    FAULTS = "Envelope faults"
    FAILED = "Failed envelopes"
    DRAIN = "Drain"
    STUCK = "Stuck notifications"
    OPEN = "Open notifications"
    ENDED = "Notifications"
    GORUSH = "gorush configuration"
    ATTEMPTS = "Attempts"
    FAILED_ATTEMPTS = "Failed attempts"
    UNKNOWN_ERRORS = "Unknown errors"
    CHANNELS = "Channels"
    TRIPPED = "Tripped channels"
    PAUSED = "Paused channels"
    HALTED = "Halted channels"
    OUTBOX = "Replies that wait"
    REPLIES = "Replies"
    LOST_REPLIES = "Lost replies"
    REQUESTS = "Requests that wait"
    CANARY = "Canary"
    XMPP_CANARY = "XMPP canary"
    REPORTS = "Last night"
    RUNS = "Runs"
    XMPP_APPS = "XMPP apps"
    XMPP_DEVICES = "XMPP devices"
    INCIDENTS = "Incidents"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the case with one link, in ``words``, with what to do about it and the ``page`` where that is done."""

    level: Level
    words: str
    action: str = ""
    since: datetime | None = None
    page: Page | None = None
    # What is said of the whole server while this is the case, where counting what is wrong would say too little.
    headline: str = ""
    # What narrows the list down to what the words count.
    narrowed: tuple[tuple[str, str], ...] = ()

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
# Where it was failing, it still is above this share of the limit.
STILL_FAILING = 0.5
JUDGED_MINUTES = 3
FEW_TRIES = 20
NOTHING_TRIED = f"no push was tried in the last {JUDGED_MINUTES} minutes"
LOST_REPLIES_SHARE = 0.05
FEW_REPLIES = 5
MANY_DEAD_LETTERS = 20
MANY_FAILED = 20
WORST = 3
_TRIPPED, _PAUSED = "tripped", "paused"


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
        Light("failed", Group.IN, "Failed envelopes", failed(facts)),
        *([Light("xmpp", Group.IN, "XMPP", xmpp(facts, facts.xmpp))] if facts.xmpp else []),
        Light("delivery", Group.OUT, "Delivery", delivery(facts)),
        *gorushes(facts),
        Light("channels", Group.OUT, "Channels", channels(facts)),
        Light("dead-tokens", Group.OUT, "Dead tokens", dead_tokens(facts)),
        Light("results", Group.OUT, "Results at gorush", results(facts)),
        Light("unknown-errors", Group.OUT, "Unknown errors", unknown_errors(facts)),
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
        things = f"{_things(red, 'needs', 'need')} somebody now{rest}"
        headlines = [light.finding.headline for light in found if light.finding.headline]
        return Finding(Level.RED, f"{headlines[0]}. {things}" if headlines else things)
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
        action = (
            "Start Redis, or correct REDIS_URL. Messages go their way meanwhile, but a process of `batches` that ends "
            "is not replaced, and nothing is done by the clock."
        )
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
    commands = _listed([f"`celery -A pushserver worker -Q {name}`" for name in names])  # `batches` has its own
    return Finding(
        level, f"nobody works on {_listed(names)}", f"Start {commands}; the log of the one that ended says why."
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
    found = [(p.host, _reached(peer(p, seen, GORUSH), facts)) for p in seen]
    if all(not p.is_up for p in seen):
        found = [(host, replace(finding, headline="No pushes are sent: no gorush answers")) for host, finding in found]
    return [Light(f"gorush-{host}", Group.OUT, f"gorush {host}", finding) for host, finding in found]


def _reached(found: Finding, facts: Facts) -> Finding:
    """Return what is worse: that gorush answers us is of no use while it does not answer the workers."""
    if facts.unreached_since is None or found.level == Level.RED:
        return found
    action = "Is the way from the workers to gorush open, and GORUSH_URL the same there? Pushes wait meanwhile."
    return Finding(Level.RED, "answers, but no push reaches it", action, facts.unreached_since, Page.GORUSH)


def peer(one: Peer, all_of_them: Sequence[Peer], words: PeerWords) -> Finding:
    """Judge one peer. One that is down is red only when no other is up, because each can do the work of all."""
    if not one.is_up:
        level = Level.YELLOW if any(other.is_up for other in all_of_them) else Level.RED
        return Finding(level, words.down, words.action, page=words.page)
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
        action = "Workers of the queue `batches` are away or too few, or wait for the database."
        return Finding(level, _waits(facts.inbox), action, _since(facts, facts.inbox.oldest_seconds), Page.INBOX)
    if facts.dead_letters >= MANY_DEAD_LETTERS:
        words = f"{facts.dead_letters} messages of the last hour could not be read"
        action = "Look at them: a new kind of client or node may speak a dialect that we do not know."
        return Finding(Level.YELLOW, words, action, page=Page.DEAD_LETTERS, narrowed=_last_hour(facts))
    return Finding(level, _waits(facts.inbox), page=Page.INBOX)


def failed(facts: Facts) -> Finding:
    """Judge the envelopes that failed by a fault of ours, which nothing but a person ends.

    A few are yellow: an envelope that trips the server up can be made on purpose, and must not wake anybody each night.
    """
    found = facts.failed
    if not found.count:
        return Finding(Level.GREEN, "none", page=Page.FAILED)
    level = Level.RED if found.lately >= MANY_FAILED else Level.YELLOW
    words = f"{found.count:,} {'waits' if found.count == 1 else 'wait'} for a repair of ours"
    if found.fault:
        words += f", the newest of {found.fault} ({found.times:,} {'time' if found.times == 1 else 'times'})"
    action = "Mend what failed, then process them again: their payload is kept until ENVELOPE_RETENTION_DAYS are over."
    return Finding(level, words, action, page=Page.FAULTS if found.fault else Page.FAILED)


def _last_hour(facts: Facts) -> tuple[tuple[str, str], ...]:
    return (("during", span(facts.now - timedelta(hours=1), facts.now + timedelta(seconds=1))),)


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
    """Judge delivery by whether anything is sent, else by the age of the longest due notification."""
    if stopped := stops(facts.switches):
        return _stopped(stopped, facts)
    if facts.is_database_slow:
        return DATABASE_IS_SLOW
    level = queue_levels(facts)["delivery"]
    seconds = facts.due.oldest_seconds
    if not seconds:
        return Finding(level, "nothing is overdue", page=Page.STUCK)
    words = f"the longest waiting notification has been due for {duration(seconds)}"
    if level not in BAD:
        return Finding(level, words, page=Page.STUCK)
    action = "Workers of the queue `batches` are away or too few, or gorush is slow."
    return Finding(level, words, action, _since(facts, seconds), Page.STUCK)


def _stopped(stopped: Sequence[Switch], facts: Facts) -> Finding:
    """Judge a standstill. It is red also where an operator wants it: the next one has to see at once that nobody is
    notified.
    """
    is_drained = stopped[0].state == DRAINED
    what = "Start it" if is_drained else "Resume the channels"
    action = f"{what} again before what waits expires, {duration(facts.time_to_live.total_seconds())} after it came."
    return Finding(
        Level.RED,
        _each(stopped),
        action,
        max(switch.since for switch in stopped),
        Page.DRAIN if is_drained else Page.HALTED,
        headline(stopped),
    )


def _each(switches: Sequence[Switch]) -> str:
    return "; ".join(switch.words for switch in switches)


def results(facts: Facts) -> Finding:
    """Judge gorush's results in each channel by the share of failures in the last minutes."""
    bad = [(level, channel) for channel in _channels(facts.tries) if (level := _failing(channel, facts)) in BAD]
    if not bad:
        total, failed = _failures(facts.tries)
        words = f"{failed.total():,} of {total:,} tries failed in the last {JUDGED_MINUTES} minutes"
        return Finding(
            Level.GREEN, words if total else NOTHING_TRIED, page=Page.FAILED_ATTEMPTS, narrowed=_judged(facts)
        )
    bad.sort(key=lambda found: BAD.index(found[0]))
    words = "; ".join(f"{channel}: {_failing_words(facts.tries, channel)}" for _, channel in bad)
    action = advice(_failures(facts.tries, bad[0][1])[1].most_common(1)[0][0][1])
    return Finding(bad[0][0], words, action, page=Page.FAILED_ATTEMPTS, narrowed=_judged(facts))


def _judged(facts: Facts) -> tuple[tuple[str, str], ...]:
    until = facts.counted_until
    return (("during", span(until - timedelta(minutes=JUDGED_MINUTES), until)),) if until else ()


def _channels(tries: ChannelTries) -> list[str]:
    return sorted({channel for channel, _, _ in tries})


def _failures(tries: ChannelTries, only: str = "") -> tuple[int, Counter[tuple[str, str]]]:
    """Return how many tries there were, and those that failed by outcome and code, in all channels or in one.

    Those of the canary that were dropped at gorush say nothing about anybody else.
    """
    failed: Counter[tuple[str, str]] = Counter()
    total = 0
    for (channel, outcome, code), number in tries.items():
        if channel == (only or channel) and code != DRY_RUN:
            total += number
            if outcome in FAILURES:
                failed[outcome, code] += number
    return total, failed


def _share(tries: ChannelTries, channel: str) -> float:
    total, failed = _failures(tries, channel)
    return failed.total() / max(total, 1)


def _failing(channel: str, facts: Facts) -> Level:
    """Return the level of one channel.

    It goes up when the last minutes are bad and the newest of them still is, and down as soon as the newest one is
    clearly below the limit. So neither a moment of failures nor a moment without any changes it.
    """
    before = facts.before.get("results", Level.GREEN)
    enough = _failures(facts.tries, channel)[0] >= FEW_TRIES
    is_told = _failures(facts.newest_tries, channel)[0] > 0
    recent = _share(facts.tries, channel)
    newest = _share(facts.newest_tries, channel) if is_told else recent
    for level, limit in ((Level.RED, FAILING_RED), (Level.YELLOW, FAILING_YELLOW)):
        was_there = before in (level, Level.RED)
        is_begun = enough and min(recent, newest) > limit
        if is_begun or (enough and was_there and newest > limit * STILL_FAILING):
            return level
    return Level.GREEN


def _failing_words(tries: ChannelTries, channel: str) -> str:
    total, failed = _failures(tries, channel)
    (outcome, code), _ = failed.most_common(1)[0]
    most = f"{outcome} ({code})" if code else outcome
    return f"{failed.total():,} of {total:,} tries failed in the last {JUDGED_MINUTES} minutes, most of them {most}"


def unknown_errors(facts: Facts) -> Finding:
    """Judge whether errors come that no rule knows. They have a light of their own: among many failures they would not
    be seen.
    """
    number = facts.unknown_errors
    if number:
        words = f"{number} {'error' if number == 1 else 'errors'} of the last hour that no rule knows"
        action = "Give them a rule. Until then they count as transient."
        return Finding(Level.YELLOW, words, action, page=Page.UNKNOWN_ERRORS, narrowed=_last_hour(facts))
    return Finding(Level.GREEN, "every error of the last hour has a rule", page=Page.UNKNOWN_ERRORS)


def channels(facts: Facts) -> Finding:
    found = [switch for switch in facts.switches if switch.state != DRAINED]
    if halted := [channel for channel in found if not channel.is_on]:
        return _halted(halted)
    if found:
        return Finding(Level.GREEN, f"{len(found)} running", page=Page.CHANNELS)
    return Finding(Level.GREY, "nothing was delivered yet", page=Page.CHANNELS)


def _halted(halted: Sequence[Switch]) -> Finding:
    """Judge halted channels by the worst of them, and name each."""
    in_order = sorted(halted, key=lambda channel: (channel.state != _TRIPPED, channel.since))
    first = in_order[0]
    page = {_TRIPPED: Page.TRIPPED, _PAUSED: Page.PAUSED}
    states = {channel.state for channel in halted}
    where = page[states.pop()] if len(states) == 1 else Page.HALTED
    if first.state == _PAUSED:
        action = "Resume it when whoever paused it is done. What waits for it expires in time."
        return Finding(Level.YELLOW, _each(in_order), action, first.since, where)
    action = "Repair the set-up at Apple, Google or gorush; a probe that comes through starts it again."
    return Finding(Level.RED, _each(in_order), action, first.since, where)


def dead_tokens(facts: Facts) -> Finding:
    """Judge whether it is believed that tokens are dead: not where a wrong set-up must be the reason."""
    if not facts.deaths_doubted:
        return Finding(Level.GREEN, "deaths of tokens are believed", page=Page.CHANNELS)
    names = _listed(sorted(facts.deaths_doubted))
    words = f"too many tokens of {names} are refused as dead to believe it: nothing is disabled, pushes are sent again"
    action = "Is the set-up right at Apple, Google and gorush: environment, project, topic? It ends by itself."
    return Finding(Level.RED, words, action, min(facts.deaths_doubted.values()), Page.CHANNELS)


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
        return Finding(Level.YELLOW, words, action, page=Page.LOST_REPLIES, narrowed=_last_hour(facts))
    return found


def many_lost_replies(replies: int) -> int:
    """Return how many lost replies of this many are too many."""
    return max(FEW_REPLIES, ceil(LOST_REPLIES_SHARE * replies))


def _outbox(facts: Facts) -> Finding:
    level = queue_levels(facts)["replies"]
    words = _waits(facts.outbox)
    if level not in BAD:
        return Finding(level, words, page=Page.OUTBOX)
    action = "Does a node take messages, and is there a worker for the queue `batches`?"
    return Finding(level, words, action, _since(facts, facts.outbox.oldest_seconds), Page.OUTBOX)


def _overdue(facts: Facts) -> Finding:
    seconds = facts.overdue_seconds
    level = _limited(seconds, red=OVERDUE_RED, yellow=OVERDUE_YELLOW)
    words = f"a request has waited for its answer for {duration(seconds)} too long"
    action = "Nobody answers: look for the workers of the queue `batches`."
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
        return Finding(Level.GREEN, f"{last.words}, {last.total_ms:,} ms in all{_unproven(last, facts)}", page=page)
    if is_expected:
        action = "Is there a worker for the queue `canary`, and beat?"
        return Finding(Level.YELLOW, "made no round trip lately", action, page=page)
    return Finding(Level.OFF, "not set up (CANARY_PERIOD_SECONDS)", page=page)


def _unproven(last: RoundTrip, facts: Facts) -> str:
    """Return what a round trip does not show: a dry run ends at gorush, and is in no channel of an app."""
    if not last.is_dry_run:
        return ""
    halted = any(not switch.is_on and switch.state != DRAINED for switch in facts.switches)
    beyond = ["Apple", "Google", *(["the halted channels"] if halted else [])]
    return f"; as far as gorush: nothing is shown about {_listed(beyond)}"


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
