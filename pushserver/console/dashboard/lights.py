"""Which light each link of the chain shows, and what is worst. Pure: facts in, lights out.

Red: messages are late or lost now, or will be within hours. Yellow: to be looked at, and it can wait for the morning.
Where `docs/monitoring/alerts.yml` has an alarm for the same thing, red is what it calls a page and yellow a ticket.
The order is that of causes: what comes first may be the reason for what comes after it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pushserver.console.dashboard.facts import Facts, Halted, Peer, Store, Trouble, Waiting


class Level(StrEnum):
    """The word that stands beside the colour."""

    RED = "act now"
    YELLOW = "look at it"
    GREEN = "fine"
    GREY = "not known"
    OFF = "off"


class Group(StrEnum):
    SERVER = "Server"
    IN = "Messages in"
    OUT = "Pushes and replies out"
    WATCH = "Watching"


class Page(StrEnum):
    """Where something is looked at or put right."""

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
    REPORTS = "Last night"
    RUNS = "Runs"


@dataclass(frozen=True, slots=True)
class Light:
    """One link. ``words`` say what is the case and ``action`` what to do; ``id`` is stable, and part of a page."""

    id: str
    group: Group
    name: str
    level: Level
    words: str
    action: str = ""
    since: datetime | None = None
    page: Page | None = None

    @property
    def is_bad(self) -> bool:
        return self.level in BAD


Rule = Callable[[Facts], Iterator[Light]]
BAD = (Level.RED, Level.YELLOW)
REDIS_IS_AWAY = "not known while Redis is away"
WATCH_ACTION = 'Is there a worker for the queue "maintenance", and beat?'
# Of the alarms, where there is one.
INBOX_RED, INBOX_YELLOW = 30.0, 5.0
DUE_RED, DUE_YELLOW = 60.0, 10.0
OUTBOX_RED, OUTBOX_YELLOW = 30.0, 3.0  # clients wait for 3 s
OVERDUE_RED, OVERDUE_YELLOW = 10.0, 3.0
STORE_BEHIND = timedelta(minutes=1)  # it is read every few seconds, up to some seconds ago
BEAT_GONE = timedelta(minutes=3)  # a minute is counted within 15 s of its end
FAILING_RED, FAILING_YELLOW, FEW_TRIES = 0.5, 0.1, 20
FAILURES = frozenset({"transient", "ambiguous", "config"})  # a token that is dead, or a payload, is nobody's outage
LOST_REPLIES_SHARE, FEW_REPLIES = 0.05, 5
MANY_DEAD_LETTERS = 20
WORST = 3


def lights(facts: Facts) -> list[Light]:
    return [light for rule in RULES for light in rule(facts)]


def worst(found: Sequence[Light]) -> list[Light]:
    """The three to begin with: red before yellow, causes before what may follow from them."""
    return sorted((light for light in found if light.is_bad), key=lambda light: BAD.index(light.level))[:WORST]


def verdict(found: Sequence[Light]) -> tuple[Level, str]:
    red, yellow = ([light for light in found if light.level == level] for level in BAD)
    if red:
        return Level.RED, f"{_things(red, 'needs', 'need')} somebody now{f', {len(yellow)} can wait' if yellow else ''}"
    if yellow:
        return Level.YELLOW, f"Messages get through; {_things(yellow, 'is', 'are').lower()} to be looked at"
    return Level.GREEN, "Messages get through, and nothing needs you"


def _things(found: Sequence[Light], one: str, several: str) -> str:
    return f"One thing {one}" if len(found) == 1 else f"{len(found)} things {several}"


# Server ---------------------------------------------------------------------------------------------------------------
def database(facts: Facts) -> Iterator[Light]:
    reason = facts.reasons.get("database", "")
    level, action = (Level.RED, "Run `manage.py migrate`, or repair PostgreSQL.") if reason else (Level.GREEN, "")
    yield Light("database", Group.SERVER, "PostgreSQL", level, reason or "answers, migrations are applied", action)


def broker(facts: Facts) -> Iterator[Light]:
    reason = facts.reasons.get("broker", "")
    action = "Start Redis, or correct REDIS_URL. Envelopes are stored meanwhile, and wait." if reason else ""
    yield Light("broker", Group.SERVER, "Redis", Level.RED if reason else Level.GREEN, reason or "answers", action)


def workers(facts: Facts) -> Iterator[Light]:
    away = [queue for queue in facts.queues if not queue.has_worker]
    names = ",".join(queue.name for queue in away)
    if _is_blind(facts):
        yield Light("workers", Group.SERVER, "Workers", Level.GREY, REDIS_IS_AWAY)
    elif not away:
        yield Light("workers", Group.SERVER, "Workers", Level.GREEN, "every queue has one")
    else:
        level = Level.RED if any(queue.is_needed for queue in away) else Level.YELLOW
        words = f"nobody works on {_listed([queue.name for queue in away])}"
        action = f"Start `celery -A pushserver worker -Q {names}`; the log of the one that ended says why."
        yield Light("workers", Group.SERVER, "Workers", level, words, action)


def _is_blind(facts: Facts) -> bool:
    """Heartbeats and notices are in Redis."""
    return bool(facts.reasons.get("broker"))


def beat(facts: Facts) -> Iterator[Light]:
    """It has no heartbeat; but what it has counted every minute tells when it last ran."""
    until = facts.counted_until
    if until is None:
        level, words = Level.GREY, "has counted nothing yet"
    elif facts.now - until <= BEAT_GONE:
        level, words = Level.GREEN, "runs"
    elif any(queue.name == "maintenance" and not queue.has_worker for queue in facts.queues):
        level, words = Level.GREY, "not known while nobody works on maintenance"
    else:
        level, words = Level.RED, "has had nothing done since"
    action = "Start `celery -A pushserver beat`: without it nothing is retried, confirmed or swept."
    is_gone = level == Level.RED
    yield Light("beat", Group.SERVER, "Beat", level, words, action if is_gone else "", until if is_gone else None)


# Messages in ----------------------------------------------------------------------------------------------------------
def nodes(facts: Facts) -> Iterator[Light]:
    if not facts.nodes:
        words, action = "no node is configured: nothing comes in", "Set WAKU_NODES."
        yield Light("node", Group.IN, "Waku node", Level.RED, words, action)
    is_any_up = any(node.is_up for node in facts.nodes)
    for node in facts.nodes:
        name = f"Node {node.host}"
        yield _peer(
            f"node-{node.host}",
            Group.IN,
            name,
            node,
            Page.NODES,
            is_any_up,
            is_blind=_is_blind(facts),
            words=NODE_WORDS,
        )


@dataclass(frozen=True, slots=True)
class PeerWords:
    up: str
    down: str
    action: str


NODE_WORDS = PeerWords(
    "is read",
    "was not read for 15 seconds",
    "Is a bridge running (`manage.py run_waku_bridge`), and does the node answer?",
)
GORUSH_WORDS = PeerWords("answers", "does not answer", "Start gorush, or correct GORUSH_URL. Pushes wait meanwhile.")


def _peer(
    light_id: str,
    group: Group,
    name: str,
    peer: Peer,
    page: Page,
    is_any_up: bool,
    *,
    is_blind: bool,
    words: PeerWords,
) -> Light:
    """One that is down is bad only when none is up: each can do the work of all."""
    first = peer.troubles[0] if peer.troubles else None
    if is_blind:
        return Light(light_id, group, name, Level.GREY, REDIS_IS_AWAY, page=page)
    if not peer.is_up:
        level = Level.YELLOW if is_any_up else Level.RED
        return Light(light_id, group, name, level, words.down, words.action, first and first.since, page)
    if first:
        return Light(light_id, group, name, Level.YELLOW, _several(peer.troubles), first.action, first.since, page)
    if not peer.is_watched:
        said = f"{words.up}; its configuration was not looked at lately"
        return Light(light_id, group, name, Level.YELLOW, said, WATCH_ACTION, None, page)
    return Light(light_id, group, name, Level.GREEN, words.up, page=page)


def _several(troubles: Sequence[Trouble]) -> str:
    more = len(troubles) - 1
    return f"{troubles[0].what}{f' (and {more} more)' if more else ''}"


def stores(facts: Facts) -> Iterator[Light]:
    for store in facts.stores:
        yield _store(store, facts.now)


def _store(store: Store, now: datetime) -> Light:
    level, words, action, since = Level.GREEN, "is read", "", None
    if store.read_up_to is None:
        level, words, action = Level.YELLOW, "was never read", NODE_WORDS.action
    elif now - store.read_up_to > STORE_BEHIND:
        level, words, since = Level.YELLOW, "is not read any further", store.read_up_to
        action = "Does the node have a store, and does it answer? What the live path loses is found there only."
    elif store.troubles:
        level, words = Level.YELLOW, _several(store.troubles)
        action, since = store.troubles[0].action, store.troubles[0].since
    if store.gaps:
        words += f"; {store.gaps} {'stretch' if store.gaps == 1 else 'stretches'} of the past still to be searched"
    return Light(f"store-{store.host}", Group.IN, f"Store {store.host}", level, words, action, since, Page.WATERMARKS)


def inbox(facts: Facts) -> Iterator[Light]:
    level = queues(facts)["inbox"]
    words, action, page = _waits(facts.inbox), "", Page.INBOX
    if level in BAD:
        action = "Workers of the queue `envelopes` are away or too few, or wait for the database."
    elif facts.dead_letters >= MANY_DEAD_LETTERS:
        level, page = Level.YELLOW, Page.DEAD_LETTERS
        words = f"{facts.dead_letters} messages of the last hour could not be read"
        action = "Look at them: a new kind of client or node may speak a dialect that we do not know."
    since = _since(facts.now, facts.inbox) if page == Page.INBOX and level in BAD else None
    yield Light("inbox", Group.IN, "Inbox", level, words, action, since, page)


def _by_age(seconds: float, *, red: float, yellow: float) -> Level:
    return Level.RED if seconds > red else Level.YELLOW if seconds > yellow else Level.GREEN


def queues(facts: Facts) -> dict[str, Level]:
    """How the age of the oldest in each queue is, whatever else its light is about. By the id of that light."""
    return {
        "inbox": _by_age(facts.inbox.oldest_seconds, red=INBOX_RED, yellow=INBOX_YELLOW),
        "delivery": _by_age(facts.due.oldest_seconds, red=DUE_RED, yellow=DUE_YELLOW),
        "replies": _by_age(facts.outbox.oldest_seconds, red=OUTBOX_RED, yellow=OUTBOX_YELLOW),
    }


def _waits(waiting: Waiting) -> str:
    if not waiting.count:
        return "empty"
    return f"{waiting.count:,} waiting, the oldest for {duration(waiting.oldest_seconds)}"


def duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"


def _since(now: datetime, waiting: Waiting) -> datetime:
    return now - timedelta(seconds=waiting.oldest_seconds)


# Pushes and replies out -----------------------------------------------------------------------------------------------
def delivery(facts: Facts) -> Iterator[Light]:
    if facts.drain:
        yield _draining(facts)
        return
    level = queues(facts)["delivery"]
    words = "nothing is overdue"
    if facts.due.oldest_seconds > 0:
        words = f"the longest waiting notification has been due for {duration(facts.due.oldest_seconds)}"
    action = "Workers of the queue `delivery` are away or too few, or gorush is slow." if level in BAD else ""
    since = _since(facts.now, facts.due) if level in BAD else None
    yield Light("delivery", Group.OUT, "Delivery", level, words, action, since, Page.STUCK)


def _draining(facts: Facts) -> Light:
    """Somebody wanted it so; but what waits for half of its time to live is close to being lost."""
    drain = facts.drain
    assert drain  # noqa: S101 - the caller looked
    level = Level.RED if facts.now - drain.since > facts.time_to_live / 2 else Level.YELLOW
    words = f"stopped by {drain.by}: {drain.why}"
    action = f"Start it again before what waits expires, {duration(facts.time_to_live.total_seconds())} after it came."
    return Light("delivery", Group.OUT, "Delivery", level, words, action, drain.since, Page.DRAIN)


def gorush(facts: Facts) -> Iterator[Light]:
    if not facts.gorush:
        words, action = "no gorush is configured: nothing goes out", "Set GORUSH_URL."
        yield Light("gorush", Group.OUT, "gorush", Level.RED, words, action)
    is_any_up = any(peer.is_up for peer in facts.gorush)
    for peer in facts.gorush:
        # Whether it answers is asked of itself; what was found out about it is in Redis, and so is nothing to say then.
        seen = Peer(peer.host, peer.is_up) if _is_blind(facts) else peer
        yield _peer(
            f"gorush-{peer.host}",
            Group.OUT,
            f"gorush {peer.host}",
            seen,
            Page.GORUSH,
            is_any_up,
            is_blind=False,
            words=GORUSH_WORDS,
        )


def results(facts: Facts) -> Iterator[Light]:
    total = sum(facts.tries.values())
    failed = {key: number for key, number in facts.tries.items() if key[0] in FAILURES}
    share = sum(failed.values()) / total if total else 0.0
    level = Level.GREEN if total < FEW_TRIES else _by_age(share, red=FAILING_RED, yellow=FAILING_YELLOW)
    words, action, page = (
        f"{sum(failed.values()):,} of {total:,} tries failed in the last ten minutes",
        "",
        Page.ATTEMPTS,
    )
    if not total:
        words = "no push was tried in the last ten minutes"
    if level in BAD:
        words += f", most of them {_most(failed)}"
        action = "docs/delivery.md says what each class means. An outage of Apple or Google needs patience only."
    elif facts.unknown_errors:
        level, page = Level.YELLOW, Page.UNKNOWN_ERRORS
        words += f"; {facts.unknown_errors} {'error' if facts.unknown_errors == 1 else 'errors'} that no rule knows"
        action = "Give them a rule. Until then they count as transient."
    yield Light("results", Group.OUT, "Results at gorush", level, words, action, None, page)


def _most(tries: Mapping[tuple[str, str], int]) -> str:
    outcome, code = max(tries, key=lambda key: tries[key])
    return f"{outcome} ({code})" if code else outcome


def channels(facts: Facts) -> Iterator[Light]:
    if not facts.halted:
        running = f"{facts.running_channels} running"
        level, words = (Level.GREEN, running) if facts.running_channels else (Level.GREY, "nothing was delivered yet")
        yield Light("channels", Group.OUT, "Channels", level, words, page=Page.CHANNELS)
        return
    first = min(facts.halted, key=_badness)
    is_lost = first.is_tripped and first.is_proven
    more = len(facts.halted) - 1
    words = f"{first.name} is {'tripped' if first.is_tripped else 'paused'}: {first.reason or 'no reason given'}"
    words += f" (and {more} more halted)" if more else ""
    action = "Repair the set-up at Apple, Google or gorush; a probe that comes through starts it again."
    if not first.is_tripped:
        action = "Resume it when whoever paused it is done. What waits for it expires in time."
    elif not first.is_proven:
        action = "Nothing was ever delivered to it: is it an app of yours? If not, there is nothing to do."
    page = Page.TRIPPED if first.is_tripped else Page.PAUSED
    level = Level.RED if is_lost else Level.YELLOW
    yield Light("channels", Group.OUT, "Channels", level, words, action, first.since, page)


def _badness(channel: Halted) -> tuple[bool, bool, datetime]:
    """Tripped with users behind it first, then paused, then those that strangers may have made up."""
    return not (channel.is_tripped and channel.is_proven), channel.is_tripped, channel.since


def replies(facts: Facts) -> Iterator[Light]:
    light = Light("replies", Group.OUT, "Replies", Level.GREEN, _waits(facts.outbox), page=Page.OUTBOX)
    late = queues(facts)["replies"]
    overdue = _by_age(facts.overdue_seconds, red=OVERDUE_RED, yellow=OVERDUE_YELLOW)
    name, group = light.name, light.group
    if late in BAD and (late == Level.RED or overdue != Level.RED):
        action = "Is there a worker for the queue `replies`, and does a node take messages?"
        light = Light("replies", group, name, late, light.words, action, _since(facts.now, facts.outbox), Page.OUTBOX)
    elif overdue in BAD:
        words = f"a request has waited for its answer for {duration(facts.overdue_seconds)} too long"
        since = facts.now - timedelta(seconds=facts.overdue_seconds)
        action = "Nobody answers: look for the workers of `replies` and for beat."
        light = Light("replies", group, name, overdue, words, action, since, Page.REQUESTS)
    elif facts.lost_replies >= max(FEW_REPLIES, LOST_REPLIES_SHARE * facts.replies):
        words = f"{facts.lost_replies:,} of the last hour may not have reached anybody"
        action = "The node that publishes has no peers, or the stores are behind: senders ask again."
        light = Light("replies", group, name, Level.YELLOW, words, action, None, Page.REPLIES)
    yield light


# Watching -------------------------------------------------------------------------------------------------------------
def canary(facts: Facts) -> Iterator[Light]:
    last = facts.canary
    level, words, action, since = Level.OFF, "not set up (CANARY_PERIOD_SECONDS)", "", None
    if _is_blind(facts):
        level, words = Level.GREY, REDIS_IS_AWAY
    elif last and last.is_broken:
        level, words = Level.RED, f"broken: {last.words}"
        action = "Messages of real clients break there, too. The page of the run says more."
    elif last:
        level, words = Level.GREEN, f"{last.words}, {last.total_ms:,} ms in all"
    elif facts.is_canary_expected:
        level, words = Level.YELLOW, "made no round trip lately"
        action = 'Is there a worker for the queue "canary", and beat?'
    yield Light("canary", Group.WATCH, "Canary", level, words, action, since, Page.CANARY)


def reports(facts: Facts) -> Iterator[Light]:
    found = facts.reports
    if found is None:
        return
    level, words, action, page = (Level.GREEN if found.is_present else Level.OFF), found.words, "", Page.REPORTS
    if found.is_missing:
        level, page = Level.YELLOW, Page.RUNS
        action = "Put right what the run says; it is made again by itself, or by hand from Last night."
    elif found.anomalies:
        level, words = Level.YELLOW, f"outside of its usual band: {found.anomalies[0]}"
        words += f" (and {len(found.anomalies) - 1} more)" if len(found.anomalies) > 1 else ""
        action = "Look whether a release, an outage or a wrong set-up explains it."
    elif found.findings:
        level, words = Level.YELLOW, f"{found.words} {found.findings} doubts about the data."
        action = "The page of the night says what does not add up."
    yield Light("reports", Group.WATCH, "Reports", level, words, action, None, page)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Causes first.
RULES: tuple[Rule, ...] = (
    *(database, broker, workers, beat),
    *(nodes, stores, inbox),
    *(delivery, gorush, channels, results, replies),
    *(canary, reports),
)
