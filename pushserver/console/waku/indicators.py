"""The health indicators of the Waku bridge: nodes, stores, inbox and outbox. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pushserver.console.checks.peers import Peer
from pushserver.console.health.judges import Queue, canary, of_config, of_peers
from pushserver.console.health.verdicts import REDIS_DOWN, Facts, Group, Kind, Page, State, Verdict, last_hour, rows

NODES_PAGE = Page("Waku nodes", "waku_nodes")
INBOX_PAGE = rows("Envelopes that wait", "waku_bridge.inboundenvelope", "state__exact=received")
FAULTS_PAGE = rows("Envelope faults", "waku_bridge.envelopefault", "waiting=yes")
FAILED_PAGE = rows("Failed envelopes", "waku_bridge.inboundenvelope", "state__exact=failed")
LOST_PAGE = rows("Lost replies", "waku_bridge.outboundreply", "lost=yes")
STORES_PAGE = rows("Store watermarks", "waku_bridge.storewatermark")
DEAD_LETTERS_PAGE = rows("Dead letters", "waku_bridge.deadletter")
CANARY_PAGE = rows("Canary", "pushserver.canaryrun", "network__exact=waku")
OUTBOX_PAGE = rows("Replies that wait", "waku_bridge.outboundreply", "state__exact=pending")

# Limits in seconds. A bridge at work, or one that stands by, sends a statement every second. From BRIDGE_QUIET on, what
# was not read says nothing about a node.
BRIDGE_RED, BRIDGE_QUIET = 3.0, 1.5
STORE_BEHIND = timedelta(minutes=2)  # a store is read up to a minute ago, every 15 seconds
LOST_REPLIES_SHARE = 0.05
FEW_REPLIES = 5
MANY_DEAD_LETTERS = 20
MANY_FAILED = 20
of_canary = canary("canary")
FEW_FAILED = 5  # failures in a minute that are red, unless more requests were taken in it
START_NODE = "Start the node if it does not answer, or correct WAKU_NODES."


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


def bridge(facts: Facts) -> Verdict:
    """Judge the bridge by its session in PostgreSQL, which ends within seconds when the process ends or hangs."""
    if not facts["nodes"]:
        return Verdict(State.OFF, "has no node to read")
    if facts["bridge_seconds"] <= BRIDGE_RED:
        return Verdict(State.GREEN, "is at work")
    first_step = "Start `manage.py run_waku_bridge`, or restart it if it hangs. Its log has the reason."
    headline = "Nothing comes in through Waku: the bridge has stopped"
    return Verdict(State.RED, "has stopped: no process of it is at work", first_step, headline=headline)


def nodes(facts: Facts) -> list[Verdict]:
    """Judge the nodes by their last reads. While the bridge does not work, nothing is known about a node."""
    found: Sequence[Peer] = facts["nodes"]
    if not found:
        headline = "Nothing comes in through Waku: no node is configured"
        return [Verdict(State.RED, "no node is configured", "Set WAKU_NODES.", headline=headline)]
    if facts["broker"]:
        return [Verdict(State.GREY, REDIS_DOWN, subject=node.host) for node in found]
    if facts.get("bridge_seconds", 0.0) > BRIDGE_QUIET and not any(node.is_up for node in found):
        sentence = "not known while the bridge is not at work"
        return [Verdict(State.GREY, sentence, subject=node.host) for node in found]
    return of_peers(
        found,
        up="is read",
        down="was not read for 3 seconds",
        first_step=START_NODE,
        headline="Nothing comes in through Waku: no node answers",
    )


def stores(facts: Facts) -> list[Verdict]:
    """Judge each store by the time up to which it was read, then by the complaints of the config check."""
    return [_store(store, facts["now"]) for store in facts["stores"]]


def _store(found: Store, now: datetime) -> Verdict:
    if found.read_up_to is None:
        return Verdict(State.YELLOW, "was never read", START_NODE, subject=found.node.host)
    if now - found.read_up_to > STORE_BEHIND:
        first_step = "Does the node have a store, and does it answer? Only the store has what the live path loses."
        return Verdict(State.YELLOW, "is not read up to now", first_step, found.read_up_to, found.node.host)
    of_node = of_config(found.node, "is read")
    return replace(of_node, own_page=NODES_PAGE) if of_node.is_bad else of_node


def dead_letters(facts: Facts) -> Verdict:
    """Judge the number of messages that could not be read in the last hour."""
    count: int = facts["dead-letters"]
    if count < MANY_DEAD_LETTERS:
        return Verdict(State.GREEN, f"{count or 'none'} in the last hour")
    sentence = f"{count} messages of the last hour could not be read"
    first_step = "Look at them: a new kind of client or node may write messages in a form that we cannot read."
    return Verdict(State.YELLOW, sentence, first_step, during=last_hour(facts["now"]))


def failed(facts: Facts) -> Verdict:
    """Judge the envelopes that failed by a fault of ours, which only a person can repair.

    A few are yellow: anybody can make an envelope that a bug fails on, and that must not wake an operator each night.
    They are red when many failed in the last hour, or when more failed in the last minute than requests were taken.
    """
    found: Failed = facts["failed"]
    if not found.count:
        return Verdict(State.GREEN, "none")
    has_failures_only = found.now >= max(FEW_FAILED, found.requests)
    state = State.RED if has_failures_only or found.lately >= MANY_FAILED else State.YELLOW
    sentence = f"{found.count:,} failed because of a bug in this server"
    if found.fault:
        sentence += f", the newest of {found.fault} ({found.times:,} {'time' if found.times == 1 else 'times'})"
    first_step = "Repair the bug, then process them again: their payloads are kept for ENVELOPE_RETENTION_DAYS."
    late = "Messages fail because of a bug in this server" if state == State.RED else ""
    page = FAULTS_PAGE if found.fault else None
    return Verdict(state, sentence, first_step, own_page=page, late=late)


def round_trips(facts: Facts) -> Verdict:
    """Judge the canary. It follows from failed envelopes only while so many fail that it must be one of them: a few
    can be red for days.
    """
    found, fails = of_canary(facts), facts.get("failed", Failed())
    is_one_of_them = fails.now >= max(FEW_FAILED, fails.requests / 10)
    return replace(found, cause="failed") if is_one_of_them and found.state == State.RED else found


def lost_replies(facts: Facts) -> Verdict:
    """Judge the share of replies of the last hour that no node took or that no answering store had."""
    lost: int = facts["lost-replies"]
    if lost < many_lost_replies(facts["replies_sent"]):
        return Verdict(State.GREEN, f"{lost or 'none'} of the last hour")
    sentence = f"{lost:,} of the last hour may not have reached anybody"
    first_step = "The node that publishes has no peers, or the stores are behind: senders ask again."
    return Verdict(State.YELLOW, sentence, first_step)


def many_lost_replies(replies: int) -> int:
    """Return the number of lost replies among these from which the indicator is yellow."""
    return max(FEW_REPLIES, ceil(LOST_REPLIES_SHARE * replies))


INBOX = Queue(
    name="inbox",
    count="pushserver_inbox_waiting",
    age="pushserver_inbox_oldest_age_seconds",
    red=30.0,
    yellow=5.0,
    subject="Messages from Waku",
    first_step="Workers of the queue `batches` are not running, are too few, or wait for the database.",
    title="Oldest envelope in the inbox",
)
OUTBOX = Queue(
    name="replies",
    count="pushserver_replies_pending",
    age="pushserver_replies_oldest_age_seconds",
    red=30.0,
    yellow=3.0,  # clients wait for 3 s
    subject="Replies",
    first_step="Does a node take messages, and is there a worker for the queue `batches`?",
    title="Oldest reply in the outbox",
)
SERVER, IN, OUT, WATCH = Group
KINDS = (
    Kind(
        *("bridge", IN, "Waku bridge", "PushServerNoBridge", bridge, NODES_PAGE),
        decides_readiness=True,
        concerns_all=True,
        follows=(SERVER,),
    ),
    Kind(
        *("node", IN, "Node", "PushServerNodeNotRead", nodes, NODES_PAGE),
        decides_readiness=True,
        concerns_all=True,
        follows=(SERVER, "bridge", "broker"),
    ),
    Kind("store", IN, "Store", "PushServerStoreBehind", stores, STORES_PAGE, follows=("bridge", "node")),
    Kind("inbox", IN, "Inbox", "PushServerInboxOld", INBOX, INBOX_PAGE, follows=(SERVER,)),
    Kind("dead-letters", IN, "Dead letters", "PushServerDeadLetters", dead_letters, DEAD_LETTERS_PAGE),
    Kind("failed", IN, "Failed envelopes", "PushServerEnvelopesFail", failed, FAILED_PAGE),
    Kind("replies", OUT, "Replies", "PushServerRepliesStuck", OUTBOX, OUTBOX_PAGE, follows=(SERVER, "node")),
    Kind(
        "lost-replies", OUT, "Lost replies", "PushServerRepliesUnconfirmed", lost_replies, LOST_PAGE, follows=("node",)
    ),
    Kind(
        *("canary", WATCH, "Canary", "PushServerCanaryBroken", round_trips, CANARY_PAGE),
        yellow_runbook="PushServerCanaryMissing",
        follows=(SERVER, "broker", "bridge", "node", "inbox", OUT, "replies"),
    ),
)
