"""The health indicators of the Waku bridge: nodes, stores, inbox and outbox. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import ceil

from pushserver.console.checks import peers
from pushserver.console.checks.peers import Peer, PeerKind
from pushserver.console.health.canaries import CanaryFacts
from pushserver.console.health.indicators import (
    DATABASE_SILENT,
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
from pushserver.console.health.waiting import Waiting, judge_queue

NODES_PAGE = Page("Waku nodes", "waku_nodes")
INBOX_PAGE = rows("Envelopes that wait", "waku_bridge.inboundenvelope", "state__exact=received")
FAULTS_PAGE = rows("Envelope faults", "waku_bridge.envelopefault", "waiting=yes")
FAILED_PAGE = rows("Failed envelopes", "waku_bridge.inboundenvelope", "state__exact=failed")
OUTBOX_PAGE = rows("Replies that wait", "waku_bridge.outboundreply", "state__exact=pending")
BRIDGE = Kind(
    *("bridge", Group.IN, "Waku bridge", "PushServerNoBridge", NODES_PAGE),
    decides_readiness=True,
    concerns_all=True,
    follows=(Group.SERVER,),
)
NODE = Kind(
    *("node", Group.IN, "Node", "PushServerNodeNotRead", NODES_PAGE),
    decides_readiness=True,
    concerns_all=True,
    follows=(Group.SERVER, BRIDGE),
)
STORE = Kind(
    *("store", Group.IN, "Store", "PushServerStoreBehind", rows("Store watermarks", "waku_bridge.storewatermark")),
    follows=(BRIDGE,),
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
    follows=(Group.SERVER, BRIDGE, NODE, INBOX, Group.OUT, REPLIES),
)
KINDS = (BRIDGE, NODE, STORE, INBOX, DEAD_LETTERS, FAILED, REPLIES, LOST_REPLIES, CANARY)

# Limits in seconds. A bridge at work, or one that stands by, sends a statement every second. From BRIDGE_QUIET on, what
# was not read says nothing about a node.
BRIDGE_RED, BRIDGE_QUIET = 3.0, 1.5
INBOX_RED, INBOX_YELLOW = 30.0, 5.0
OUTBOX_RED, OUTBOX_YELLOW = 30.0, 3.0  # clients wait for 3 s
STORE_BEHIND = timedelta(minutes=2)  # a store is read up to a minute ago, every 15 seconds
LOST_REPLIES_SHARE = 0.05
FEW_REPLIES = 5
MANY_DEAD_LETTERS = 20
MANY_FAILED = 20
FEW_FAILED = 5  # failures in a minute that are red, unless more requests were taken in it
ABOUT_NODES = PeerKind(
    NODE,
    "is read",
    "was not read for 3 seconds",
    "Start the node if it does not answer, or correct WAKU_NODES.",
)


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a Waku node. ``node`` has complaints only where the bridge does not read the node live as well.

    ``read_up_to`` is the time up to which the store was read, on the shard that is furthest behind, or None when it was
    never read.
    """

    node: Peer
    read_up_to: datetime | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The envelopes that failed by faults of ours and are kept. All numbers are counted up to a limit.

    ``count`` is their number, ``lately`` that of the last hour, and ``now`` that of the last minute. ``requests`` is
    the number of requests that were taken in that minute. ``fault`` was seen last, and ``times`` is its count.
    """

    count: int = 0
    lately: int = 0
    fault: str = ""
    times: int = 0
    now: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """The facts from the status cache: which nodes were read lately, and the result of the canary's last round trip.

    ``bridge_seconds`` is the time since the last statement of the bridge. It is infinite without a bridge, and None
    while PostgreSQL does not answer.
    """

    nodes: Sequence[Peer] = ()
    canary: CanaryFacts = field(default_factory=CanaryFacts)
    bridge_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class WakuFacts:
    """The facts from the database. ``inbox`` and ``outbox`` are None where it did not count them in time.

    ``replies`` is the number of replies of the last hour, and ``lost_replies`` the number of those that no node took or
    that no answering store had.
    """

    stores: Sequence[Store] = ()
    inbox: Waiting | None = field(default_factory=Waiting)
    dead_letters: int = 0
    failed: Failed = Failed()
    outbox: Waiting | None = field(default_factory=Waiting)
    replies: int = 0
    lost_replies: int = 0


def bridge(found: Reached) -> Indicator:
    """Judge the bridge by its session in PostgreSQL, which ends within seconds when the process ends or hangs."""
    if not found.nodes:
        return Indicator(BRIDGE, State.OFF, "has no node to read")
    if found.bridge_seconds is None:
        return Indicator(BRIDGE, State.GREY, DATABASE_SILENT)
    if found.bridge_seconds <= BRIDGE_RED:
        return Indicator(BRIDGE, State.GREEN, "is at work")
    first_step = "Start `manage.py run_waku_bridge`, or restart it if it hangs. Its log has the reason."
    headline = "Nothing comes in through Waku: the bridge has stopped"
    return Indicator(BRIDGE, State.RED, "has stopped: no process of it is at work", first_step, headline=headline)


def nodes(reached: Reached, *, is_redis_down: bool) -> list[Indicator]:
    """Judge the nodes by their last reads. While the bridge does not work, nothing is known about a node."""
    found = reached.nodes
    if not found:
        headline = "Nothing comes in through Waku: no node is configured"
        return [Indicator(NODE, State.RED, "no node is configured", "Set WAKU_NODES.", headline=headline)]
    if is_redis_down:
        return [Indicator(NODE, State.GREY, REDIS_DOWN, subject=node.host) for node in found]
    if (reached.bridge_seconds or 0.0) > BRIDGE_QUIET and not any(node.is_up for node in found):
        return [
            Indicator(NODE, State.GREY, "not known while the bridge is not at work", subject=node.host)
            for node in found
        ]
    judged = [peers.judge(node, found, ABOUT_NODES) for node in found]
    if any(node.is_up for node in found):
        return judged
    return [replace(one, headline="Nothing comes in through Waku: no node answers") for one in judged]


def store(found: Store, now: datetime) -> Indicator:
    """Judge one store by the time up to which it was read, then by the complaints of the config check."""
    if found.read_up_to is None:
        return Indicator(STORE, State.YELLOW, "was never read", ABOUT_NODES.first_step, subject=found.node.host)
    if now - found.read_up_to > STORE_BEHIND:
        first_step = "Does the node have a store, and does it answer? Only the store has what the live path loses."
        return Indicator(STORE, State.YELLOW, "is not read up to now", first_step, found.read_up_to, found.node.host)
    if found.node.complaints or not found.node.is_watched:
        return replace(peers.deviating(STORE, found.node, "is read"), own_page=NODES_PAGE)
    return Indicator(STORE, State.GREEN, "is read", subject=found.node.host)


def inbox(waiting: Waiting | None, now: datetime) -> Indicator:
    """Judge the inbox by the age of its oldest envelope."""
    first_step = "Workers of the queue `batches` are not running, are too few, or wait for the database."
    return judge_queue(INBOX, state_of_inbox(waiting), waiting, first_step, now, subject="Messages from Waku")


def state_of_inbox(waiting: Waiting | None) -> State:
    return above(waiting.oldest_seconds, red=INBOX_RED, yellow=INBOX_YELLOW) if waiting else State.GREY


def dead_letters(count: int, now: datetime) -> Indicator:
    """Judge the number of messages that could not be read in the last hour."""
    if count < MANY_DEAD_LETTERS:
        return Indicator(DEAD_LETTERS, State.GREEN, f"{count or 'none'} in the last hour")
    sentence = f"{count} messages of the last hour could not be read"
    first_step = "Look at them: a new kind of client or node may write messages in a form that we cannot read."
    return Indicator(DEAD_LETTERS, State.YELLOW, sentence, first_step, during=last_hour(now))


def failed(found: Failed) -> Indicator:
    """Judge the envelopes that failed by a fault of ours, which only a person can repair.

    A few are yellow: anybody can make an envelope that a bug fails on, and that must not wake an operator each night.
    They are red when many failed in the last hour, or when more failed in the last minute than requests were taken.
    """
    if not found.count:
        return Indicator(FAILED, State.GREEN, "none")
    has_failures_only = found.now >= max(FEW_FAILED, found.requests)
    state = State.RED if has_failures_only or found.lately >= MANY_FAILED else State.YELLOW
    sentence = f"{found.count:,} failed because of a bug in this server"
    if found.fault:
        sentence += f", the newest of {found.fault} ({found.times:,} {'time' if found.times == 1 else 'times'})"
    first_step = "Repair the bug, then process them again: their payloads are kept for ENVELOPE_RETENTION_DAYS."
    late = "Messages fail because of a bug in this server" if state == State.RED else ""
    page = FAULTS_PAGE if found.fault else None
    return Indicator(FAILED, state, sentence, first_step, own_page=page, late=late)


def replies(waiting: Waiting | None, now: datetime) -> Indicator:
    """Judge the replies that wait for a node by the age of the oldest."""
    first_step = "Does a node take messages, and is there a worker for the queue `batches`?"
    return judge_queue(REPLIES, state_of_outbox(waiting), waiting, first_step, now, subject="Replies")


def state_of_outbox(waiting: Waiting | None) -> State:
    return above(waiting.oldest_seconds, red=OUTBOX_RED, yellow=OUTBOX_YELLOW) if waiting else State.GREY


def lost_replies(facts: WakuFacts) -> Indicator:
    """Judge the share of replies of the last hour that may not have reached anybody."""
    lost = facts.lost_replies
    if lost < many_lost_replies(facts.replies):
        return Indicator(LOST_REPLIES, State.GREEN, f"{lost or 'none'} of the last hour")
    sentence = f"{lost:,} of the last hour may not have reached anybody"
    first_step = "The node that publishes has no peers, or the stores are behind: senders ask again."
    return Indicator(LOST_REPLIES, State.YELLOW, sentence, first_step)


def many_lost_replies(replies: int) -> int:
    """Return the number of lost replies among these from which the indicator is yellow."""
    return max(FEW_REPLIES, ceil(LOST_REPLIES_SHARE * replies))
