"""Sending of replies on the event loop of a process: offering one to nodes and asking stores for it is one send.

    new ─────▶ publish ──3 s──▶ ask the stores ──▶ result
    overdue ─▶ ask the stores ─▶ publish, if none has it ──▶ result

The row of a new reply is not written again before its result. So nobody knows whether an overdue reply was published,
and the stores are asked first. Store nodes keep a message only while its timestamp is within 20 s of their clock, the
archive window. A reply that is published twice within this window has the same bytes, and clients receive it once. A
later repetition gets a new timestamp, which makes it a new message.

A reply is offered to one node, and to the next one when the first refuses it or is slow. A node that takes a message
may lose it, and nwaku's relay route returns OK also when no peer is connected. A store that does not answer leaves the
verdict open. No reply is published again for that, so that the outage of a store does not cause a flood.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from time import monotonic, time_ns
from typing import NamedTuple

import structlog

from kit.batches.batch import Wakeup
from kit.batches.inflight import InFlight
from kit.buckets.bucket import Buckets, Limit
from kit.db.clock import clock
from kit.telemetry import Role, step
from waku_bridge.codec.wire import message_hash
from waku_bridge.dialect import MessageTooLarge, NodeError, Slow
from waku_bridge.messages import WakuMessage
from waku_bridge.metrics import PUBLISH_ERRORS
from waku_bridge.models import ReplyFacts
from waku_bridge.node import Nodes, WakuNode

log = structlog.get_logger(__name__)


class Outgoing(NamedTuple):
    """A reply that this process acts on: its row in the outbox, and what is known about earlier publications."""

    id: int
    due_at: datetime  # the end of the lease
    envelope_hash: bytes  # of the envelope that it answers
    part: int
    message_type: int
    pubsub_topic: str
    content_topic: str
    payload: bytes
    timestamp_ns: int
    created_at: datetime
    needs_confirmation: bool = True  # stores are asked for it
    is_discarded: bool = False
    attempt_count: int = 0
    repeat_count: int = 0
    node: str = ""  # URL of the node that took it last
    message_hash: bytes | None = None  # its hash in stores, once a node took it
    published_at: datetime | None = None

    @property
    def message(self) -> WakuMessage:
        """Return the reply in the form that nodes take."""
        return WakuMessage(self.payload, self.content_topic, self.timestamp_ns)

    @property
    def hash(self) -> bytes:
        """Return the hash that the reply has in stores, if any node took it."""
        return self.message_hash or message_hash(self.pubsub_topic, self.message)


class Verdict(Enum):
    """The result of querying the stores for a reply."""

    CONFIRMED = auto()
    MISSING = auto()
    UNKNOWN = auto()  # no store answered


@dataclass(slots=True)
class Sent:
    """A reply and what came of this send. A verdict is None where no query was made."""

    reply: Outgoing
    before: Verdict | None = None  # about earlier publications
    is_offered: bool = False
    refusals: list[tuple[WakuNode, NodeError]] = field(default_factory=list)  # of nodes that did not take it
    node: WakuNode | None = None  # the node that took it, when that was, and its hash in stores
    at: datetime | None = None
    hash: bytes | None = None
    after: Verdict | None = None  # about the publication of this send
    state: ReplyFacts.State = ReplyFacts.State.PENDING  # what follows from it
    due_at: datetime | None = None  # when the reply is due again, or None if it ends

    @property
    def is_refused(self) -> bool:
        """Return whether it was offered to nodes and none took it."""
        return self.is_offered and self.node is None

    @property
    def is_missing(self) -> bool:
        """Return whether a node took the reply, and no store that answered has it."""
        return Verdict.MISSING in (self.after, self.before if self.reply.published_at else None)

    @property
    def attributes(self) -> dict[str, object]:
        """Return the attributes of this send in the trace of the envelope."""
        attempt = {"attempt": self.reply.attempt_count, "outcome": "taken" if self.node else "refused"}
        return {**attempt, "node": self.node.name} if self.node else {**attempt}


# Offering a reply to nodes --------------------------------------------------------------------------------------------
# A node that has not answered for this long is slow, and the next one is offered the same reply (a hedged request). A
# client waits three seconds.
SLOW_AFTER_SECONDS = 0.5


async def publish(sent: Sent, nodes: Nodes) -> None:
    """Offer a reply to one node after the other, until one takes it.

    The next node is offered the reply when one refuses it, or is slow and `Nodes.may_hedge`. Once a node has taken the
    reply, those that still do not answer are cancelled. Both may publish it, because its bytes are the same.
    """
    # The node that took it before comes last: for two minutes gossip does not forward a message that it has seen.
    left = nodes.in_order(last=sent.reply.node)
    offers: dict[asyncio.Task[NodeError | None], tuple[WakuNode, float]] = {}
    has_next, sent.is_offered = True, True
    try:
        while (left or offers) and not sent.node:
            if left and (has_next or not offers):
                node = left.pop(0)
                offers[asyncio.ensure_future(_offer(sent.reply, node, nodes))] = node, monotonic()
            timeout = SLOW_AFTER_SECONDS if left else None
            done, _ = await asyncio.wait(offers, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                node, _since = offers.pop(each)
                if error := each.result():
                    sent.refusals.append((node, error))
                elif not sent.node:
                    sent.node, sent.at = node, clock.now()
                    sent.hash = message_hash(sent.reply.pubsub_topic, sent.reply.message)
            has_next = bool(done) or nodes.may_hedge()
    finally:
        for each in offers:
            each.cancel()
    for node, since in offers.values():
        if monotonic() - since >= SLOW_AFTER_SECONDS:  # others are preferred for a while
            nodes.failed(node, slow := Slow(f"{node.name} is slow"))
            sent.refusals.append((node, slow))


async def _offer(reply: Outgoing, node: WakuNode, nodes: Nodes) -> NodeError | None:
    """Offer a reply to one node, and note whether the node works. Return its refusal, or None if it took the reply."""
    since = monotonic()
    try:
        await node.publish(reply.pubsub_topic, reply.message)
    except NodeError as error:
        if not isinstance(error, MessageTooLarge):
            nodes.failed(node, error)
        return error
    nodes.answered(node, monotonic() - since)
    return None


def log_refusals(results: Iterable[Sent]) -> None:
    """Log and count the refusals of nodes, with one line for each kind."""
    refusals = [refusal for sent in results for refusal in sent.refusals]
    kinds = Counter((node.name, type(error).__name__, error.code) for node, error in refusals)
    for (node, error, code), number in kinds.items():
        log.warning("node_refused_replies", node=node, error=error, code=code, count=number)
        PUBLISH_ERRORS.labels(node, code).inc(number)


# Asking stores for replies --------------------------------------------------------------------------------------------
STORES_ASKED = 2
# A store answers with at most 100 messages.
HASHES_PER_QUERY = 100
ASK_EVERY_SECONDS = 2.0
# Time in which the replies of a batch join one round.
GATHERING_SECONDS = 0.05
# A reply by its hash (32 bytes) in stores, and the URL of the node that took it, where that is known.
Question = tuple[bytes, str]


def judge(taker: str, known_by: Mapping[str, bool]) -> Verdict:
    """Return the verdict about a reply. ``known_by`` says, for each store URL that answered, if it has the reply.

    The node that took a message has it in its own store whether or not it reached any peer. So the answer of that node
    counts only where no other store answered.
    """
    others = [is_known for url, is_known in known_by.items() if url != taker]
    answers = others or list(known_by.values())
    if not answers:
        return Verdict.UNKNOWN
    return Verdict.CONFIRMED if any(answers) else Verdict.MISSING


class Stores:
    """The stores of a process, which are queried for many replies in one round. Only the event loop may use it."""

    def __init__(self, stores: Nodes) -> None:
        self._stores = stores
        self._asked: dict[Question, asyncio.Future[Verdict]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._next_at = 0.0

    @property
    def exist(self) -> bool:
        """Return whether any store is configured."""
        return bool(self._stores.in_order())

    async def ask(self, reply_hash: bytes, taker: str) -> Verdict:
        """Query the stores for a reply in the next round, and return the verdict."""
        if not self.exist:
            return Verdict.UNKNOWN
        verdict = self._asked.setdefault((reply_hash, taker), asyncio.get_running_loop().create_future())
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_rounds())
        return await asyncio.shield(verdict)  # a send that is cut off must not cancel it

    async def _ask_in_rounds(self) -> None:
        while self._asked:
            await asyncio.sleep(max(self._next_at - monotonic(), GATHERING_SECONDS))
            self._next_at = monotonic() + ASK_EVERY_SECONDS
            asked, self._asked = self._asked, {}
            answers: Mapping[bytes, Mapping[str, bool]] = {}
            try:
                answers = await self._ask_all(asked)
            except Exception as error:  # noqa: BLE001 - a fault of ours: the verdict is UNKNOWN, and the query is repeated
                log.error("stores_not_asked", error=type(error).__name__)  # noqa: TRY400 - nothing to trace
            for (reply_hash, taker), verdict in asked.items():
                verdict.set_result(judge(taker, answers.get(reply_hash, {})))

    async def _ask_all(self, asked: Collection[Question]) -> dict[bytes, dict[str, bool]]:
        """Return for each hash whether the stores that answered have it, by the URL of the store."""
        wanted: dict[WakuNode, list[bytes]] = defaultdict(list)
        hashes: dict[str, list[bytes]] = defaultdict(list)
        for reply_hash, taker in asked:
            hashes[taker].append(reply_hash)
        for taker, taken in hashes.items():
            for store in self._stores.trusted(last=taker)[:STORES_ASKED]:
                wanted[store] += taken
        answers: dict[bytes, dict[str, bool]] = defaultdict(dict)
        await asyncio.gather(*(self._ask_one(store, hashes, answers) for store, hashes in wanted.items()))
        return answers

    async def _ask_one(self, store: WakuNode, hashes: Sequence[bytes], answers: dict[bytes, dict[str, bool]]) -> None:
        """Send queries to a store one after the other, because it serves others too, and stop at the first failure."""
        for start in range(0, len(hashes), HASHES_PER_QUERY):
            some = hashes[start : start + HASHES_PER_QUERY]
            started = monotonic()
            try:
                known = await store.known(some)
            except NodeError as error:
                log.warning("store_not_asked", node=store.name, error=type(error).__name__, code=error.code)
                self._stores.failed(store, error)
                return
            self._stores.answered(store, monotonic() - started)
            for each in some:
                answers[each][store.url] = each in known


# Sending --------------------------------------------------------------------------------------------------------------
# The worker that decides on a reply has this long to publish it and to ask the stores for it. Then any worker acts on
# it, while a second publication still has the same bytes.
LEASE = timedelta(seconds=12)
# A send is cut off before its lease ends, so that its result is recorded by then.
TIMEOUT_SECONDS = 0.9 * LEASE.total_seconds()
# A message needs a second or two from publication to archive.
CHECK_AFTER_SECONDS = 3.0
# Five seconds less than the archive window, for transport and for clocks that differ.
FRESH_NS = 15 * 10**9
MAX_REPEATS = 4
# Limit of repeated publications, which leaves capacity for new replies while a network loses everything.
REPEATS = (Limit(200, 2.0),)


class Sends(InFlight[Sent]):
    """The replies that this process sends. It keeps their results until a batch has recorded them."""

    def __init__(self, nodes: Nodes, stores: Nodes, wakeup: Wakeup) -> None:
        super().__init__(wakeup)
        self._nodes, self._stores = nodes, Stores(stores)
        self._repeats = Buckets(1)
        self._started = 0  # only the worker's thread changes it
        self._offered = 0  # only the loop changes it

    def is_publishing(self) -> bool:
        """Return whether any reply is still to be offered to nodes, or to be left alone."""
        return self._started > self._offered

    def send(self, replies: Sequence[Outgoing], *, are_new: bool) -> None:
        """Start sending. Call it after the commit that stored or claimed the replies."""
        self._started += len(replies)
        self.start([partial(self._act, reply, is_new=are_new) for reply in replies])

    async def _act(self, reply: Outgoing, *, is_new: bool) -> Sent:
        sent = Sent(reply)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._offer(sent, is_new=is_new)
                if sent.node and not sent.reply.repeat_count:
                    await self._confirm(sent)
        except TimeoutError:
            log.warning("sending_cut_off")
        except Exception as error:  # noqa: BLE001 - a fault of ours: the reply stays in the outbox
            log.error("sending_failed", error=type(error).__name__)  # noqa: TRY400 - it may quote the reply
        return sent

    async def _offer(self, sent: Sent, *, is_new: bool) -> None:
        try:
            if is_new or await self._is_wanted(sent):
                await self._publish(sent)
        finally:
            self._offered += 1

    async def _is_wanted(self, sent: Sent) -> bool:
        """Ask the stores for an overdue reply, and return whether it is to be published.

        One that was published before is only repeated if a store answered that it does not have it.
        """
        reply = sent.reply
        sent.before = await self._ask(reply, reply.hash, reply.node)
        if not reply.published_at:
            return sent.before is not Verdict.CONFIRMED
        if sent.before is not Verdict.MISSING or reply.repeat_count >= MAX_REPEATS:
            return False
        return self._repeats.take(("repeats", REPEATS), now=monotonic())

    async def _publish(self, sent: Sent) -> None:
        """Offer the reply to the nodes, with a new timestamp if stores would refuse the old one."""
        reply, now_ns = sent.reply, clock.now_ns()
        sent.reply = reply._replace(
            attempt_count=reply.attempt_count + 1,
            repeat_count=reply.repeat_count + bool(reply.published_at),
            timestamp_ns=now_ns if now_ns - reply.timestamp_ns > FRESH_NS else reply.timestamp_ns,
        )
        began_ns = time_ns()
        try:
            await publish(sent, self._nodes)
        finally:
            attributes, is_error = sent.attributes, sent.node is None
            step("publish", reply.envelope_hash, attributes, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)

    async def _confirm(self, sent: Sent) -> None:
        """Ask the stores for a reply that was just published. A later repetition is asked for when it is due."""
        if sent.reply.needs_confirmation and self._stores.exist and sent.node and sent.hash:
            await asyncio.sleep(CHECK_AFTER_SECONDS)
            sent.after = await self._ask(sent.reply, sent.hash, sent.node.url)

    async def _ask(self, reply: Outgoing, reply_hash: bytes, taker: str) -> Verdict:
        began_ns = time_ns()
        verdict = await self._stores.ask(reply_hash, taker)
        attributes, is_error = {"outcome": verdict.name.lower()}, verdict is not Verdict.CONFIRMED
        step("confirm", reply.envelope_hash, attributes, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        return verdict
