"""Judge the Waku bridge: nodes, stores, what came and what goes back. The module is pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from kit.health import peers
from kit.health.canaries import CanaryFacts
from kit.health.indicators import (
    REDIS_DOWN,
    Group,
    Indicator,
    Kind,
    Page,
    State,
    above,
    last_hour,
    rows,
)
from kit.health.peers import Peer, PeerKind
from kit.health.waiting import Waiting, judge_queue

NODES_PAGE = Page("Waku nodes", "waku_nodes")
INBOX_PAGE = rows("Envelopes that wait", "waku_bridge.inboundenvelope", "state__exact=received")
FAULTS_PAGE = rows("Envelope faults", "waku_bridge.envelopefault", "waiting=yes")
FAILED_PAGE = rows("Failed envelopes", "waku_bridge.inboundenvelope", "state__exact=failed")
OUTBOX_PAGE = rows("Replies that wait", "waku_bridge.outboundreply", "state__exact=pending")
NODE = Kind(
    *("node", Group.IN, "Node", "PushServerNodeNotRead", NODES_PAGE),
    decides_readiness=True,
    concerns_all=True,
    follows=(Group.SERVER,),
)
STORE = Kind(
    "store", Group.IN, "Store", "PushServerStoreBehind", rows("Store watermarks", "waku_bridge.storewatermark")
)
INBOX = Kind("inbox", Group.IN, "Inbox", "PushServerInboxOld", INBOX_PAGE, follows=(Group.SERVER,))
DEAD_LETTERS = Kind(
    "dead-letters", Group.IN, "Dead letters", "PushServerDeadLetters", rows("Dead letters", "waku_bridge.deadletter")
)
FAILED = Kind("failed", Group.IN, "Failed envelopes", "PushServerEnvelopesFail", FAILED_PAGE)
REPLIES = Kind(*("replies", Group.OUT, "Replies", "PushServerRepliesStuck", OUTBOX_PAGE), follows=(Group.SERVER, NODE))
LOST_REPLIES = Kind(
    "lost-replies",
    Group.OUT,
    "Lost replies",
    "PushServerRepliesUnconfirmed",
    rows("Lost replies", "waku_bridge.outboundreply", "lost=yes"),
    follows=(NODE,),
)
CANARY = Kind(
    *("canary", Group.WATCH, "Canary", "PushServerCanaryBroken", rows("Canary", "waku_bridge.canaryrun")),
    follows=(Group.SERVER, NODE, INBOX, Group.OUT, REPLIES),
)
KINDS = (NODE, STORE, INBOX, DEAD_LETTERS, FAILED, REPLIES, LOST_REPLIES, CANARY)

# Limits in seconds.
INBOX_RED, INBOX_YELLOW = 30.0, 5.0
OUTBOX_RED, OUTBOX_YELLOW = 30.0, 3.0  # clients wait for 3 s
STORE_BEHIND = timedelta(minutes=1)  # it is read every few seconds, up to some seconds ago
LOST_REPLIES_SHARE = 0.05
FEW_REPLIES = 5
MANY_DEAD_LETTERS = 20
MANY_FAILED = 20
FEW_FAILED = 5  # are many in a minute in which no more were taken
ABOUT_NODES = PeerKind(
    NODE,
    "is read",
    "was not read for 3 seconds",
    "Is a bridge running (`manage.py run_waku_bridge`), and does the node answer?",
)


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a Waku node, with what the config check found of a node that is asked for its store only.

    ``read_up_to`` is the time up to which it was read, on the shard that is furthest behind, or None when it never was.
    ``gaps`` are stretches of the past that are still to be searched.
    """

    node: Peer
    read_up_to: datetime | None
    gaps: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """Envelopes that failed by faults of ours and wait: how many there are, and of these from the last hour, counted up
    to a limit; and the fault that was seen last, with how often it was. ``now`` are those of the last minute, beside
    the ``requests`` that were taken in it.
    """

    count: int = 0
    lately: int = 0
    fault: str = ""
    times: int = 0
    now: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """What the cache holds: which nodes were read lately, and how the canary's last round trip went."""

    nodes: Sequence[Peer] = ()
    canary: CanaryFacts = field(default_factory=CanaryFacts)


@dataclass(frozen=True, slots=True)
class WakuFacts:
    """What the database knows of the bridge. ``inbox`` and ``outbox`` are None where it did not count them in time.

    ``replies`` counts the replies of the last hour, and ``lost_replies`` those of them that no node took or that no
    answering store had.
    """

    stores: Sequence[Store] = ()
    inbox: Waiting | None = field(default_factory=Waiting)
    dead_letters: int = 0
    failed: Failed = Failed()
    outbox: Waiting | None = field(default_factory=Waiting)
    replies: int = 0
    lost_replies: int = 0


def nodes(found: Sequence[Peer], *, is_redis_down: bool) -> list[Indicator]:
    if not found:
        headline = "Nothing comes in through Waku: no node is configured"
        return [Indicator(NODE, State.RED, "no node is configured", "Set WAKU_NODES.", headline=headline)]
    if is_redis_down:
        return [Indicator(NODE, State.GREY, REDIS_DOWN, subject=node.host) for node in found]
    judged = [peers.judge(node, found, ABOUT_NODES) for node in found]
    if any(node.is_up for node in found):
        return judged
    return [replace(one, headline="Nothing comes in through Waku: no node answers") for one in judged]


def store(found: Store, now: datetime) -> Indicator:
    """Judge one store by the time up to which it was read, then by its configuration."""
    if found.read_up_to is None:
        return Indicator(STORE, State.YELLOW, "was never read", ABOUT_NODES.first_step, subject=found.node.host)
    if now - found.read_up_to > STORE_BEHIND:
        first_step = "Does the node have a store, and does it answer? What the live path loses is found there only."
        return Indicator(STORE, State.YELLOW, "is not read any further", first_step, found.read_up_to, found.node.host)
    if found.node.complaints or not found.node.is_watched:
        return replace(peers.deviating(STORE, found.node, "is read"), own_page=NODES_PAGE)
    gaps = f"; {found.gaps} {'stretch' if found.gaps == 1 else 'stretches'} of the past still to be searched"
    return Indicator(STORE, State.GREEN, f"is read{gaps if found.gaps else ''}", subject=found.node.host)


def inbox(waiting: Waiting | None, now: datetime) -> Indicator:
    """Judge the inbox by the age of its oldest envelope."""
    first_step = "Workers of the queue `batches` are away or too few, or wait for the database."
    return judge_queue(INBOX, state_of_inbox(waiting), waiting, first_step, now, subject="Messages from Waku")


def state_of_inbox(waiting: Waiting | None) -> State:
    return above(waiting.oldest_seconds, red=INBOX_RED, yellow=INBOX_YELLOW) if waiting else State.GREY


def dead_letters(count: int, now: datetime) -> Indicator:
    """Judge the number of messages that could not be read in the last hour."""
    if count < MANY_DEAD_LETTERS:
        return Indicator(DEAD_LETTERS, State.GREEN, f"{count or 'none'} in the last hour")
    sentence = f"{count} messages of the last hour could not be read"
    first_step = "Look at them: a new kind of client or node may speak a dialect that we do not know."
    return Indicator(DEAD_LETTERS, State.YELLOW, sentence, first_step, during=last_hour(now))


def failed(found: Failed) -> Indicator:
    """Judge the envelopes that failed by a fault of ours, which nothing but a person ends.

    A few are yellow: an envelope that trips the server up can be made on purpose, and must not wake anybody each night.
    They are red where no more requests were taken in the same minute.
    """
    if not found.count:
        return Indicator(FAILED, State.GREEN, "none")
    has_failures_only = found.now >= max(FEW_FAILED, found.requests)
    state = State.RED if has_failures_only or found.lately >= MANY_FAILED else State.YELLOW
    sentence = f"{found.count:,} failed because of a bug in this server"
    if found.fault:
        sentence += f", the newest of {found.fault} ({found.times:,} {'time' if found.times == 1 else 'times'})"
    first_step = "Mend what failed, then process them again: their payload is kept for ENVELOPE_RETENTION_DAYS."
    late = "Messages fail because of a bug in this server" if state == State.RED else ""
    page = FAULTS_PAGE if found.fault else None
    return Indicator(FAILED, state, sentence, first_step, own_page=page, late=late)


def replies(waiting: Waiting | None, now: datetime) -> Indicator:
    """Judge the replies that wait for a node by the age of the oldest."""
    first_step = "Does a node take messages, and is there a worker for the queue `batches`?"
    return judge_queue(REPLIES, state_of_outbox(waiting), waiting, first_step, now, subject="Replies")


def state_of_outbox(waiting: Waiting | None) -> State:
    return above(waiting.oldest_seconds, red=OUTBOX_RED, yellow=OUTBOX_YELLOW) if waiting else State.GREY


def lost_replies(facts: WakuFacts, now: datetime) -> Indicator:
    """Judge the share of replies of the last hour that may not have reached anybody."""
    lost = facts.lost_replies
    if lost < many_lost_replies(facts.replies):
        return Indicator(LOST_REPLIES, State.GREEN, f"{lost or 'none'} of the last hour")
    sentence = f"{lost:,} of the last hour may not have reached anybody"
    first_step = "The node that publishes has no peers, or the stores are behind: senders ask again."
    return Indicator(LOST_REPLIES, State.YELLOW, sentence, first_step, during=last_hour(now))


def many_lost_replies(replies: int) -> int:
    """Return how many lost replies of this many are too many."""
    return max(FEW_REPLIES, ceil(LOST_REPLIES_SHARE * replies))
