"""Sending of replies on the event loop of a process: offering one to nodes and asking stores for it is one send.

    new ─────▶ publish ──3 s──▶ ask the stores ──▶ result
    overdue ─▶ ask the stores ─▶ publish, if none has it ──▶ result

The row of a new reply is not written again before its result. So nobody knows whether an overdue reply was published,
and the stores are asked first. Store nodes keep a message only while its timestamp is within 20 s of their clock, the
archive window. A reply that is published twice within this window has the same bytes, and clients receive it once. A
later repetition gets a new timestamp, which makes it a new message.

A reply is offered to one node, and to the next one when the first refuses it or is slow.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import monotonic, time_ns
from typing import NamedTuple

import structlog

from kit.batches.batch import Wakeup
from kit.batches.inflight import InFlight
from kit.buckets.bucket import Buckets, Limit
from kit.db.clock import clock
from kit.tracing import Role, step
from waku_bridge.codec.topics import message_hash
from waku_bridge.dialect import MessageTooLarge, NodeError, Slow
from waku_bridge.metrics import PUBLISH_ERRORS
from waku_bridge.node import Nodes, WakuNode
from waku_bridge.outbound.confirming import Stores, Verdict
from waku_bridge.outbound.recording import LEASE, Outgoing

log = structlog.get_logger(__name__)

# Offering a reply to nodes --------------------------------------------------------------------------------------------
# A node that has not answered for this long is slow, and the next one is offered the same reply (a hedged request). A
# client waits three seconds.
SLOW_AFTER_SECONDS = 0.5


class Published(NamedTuple):
    """The publication of a reply: its hash in stores (32 bytes), the URL and the name of the node, and when."""

    hash: bytes
    node: str
    name: str
    at: datetime


class Refusal(NamedTuple):
    """A node that did not take a reply: its name, the type of our error, and the code of the node's answer."""

    node: str
    error: str
    code: str


class Tried(NamedTuple):
    """The result of offering a reply to the nodes: which node took it, if any, and which refused it before."""

    published: Published | None = None
    refusals: Sequence[Refusal] = ()


async def publish_one(reply: Outgoing, nodes: Nodes) -> Tried:
    """Offer a reply to one node after the other, until one takes it.

    The next node is offered the reply when one refuses it, or is slow and `Nodes.may_hedge`. Once a node has taken the
    reply, those that still do not answer are cancelled. Both may publish it, because its bytes are the same.
    """
    # The node that took it before comes last: for two minutes gossip does not forward a message that it has seen.
    left = nodes.in_order(last=reply.node)
    offers: dict[asyncio.Task[Published | NodeError], _Offer] = {}
    refusals: list[Refusal] = []
    has_next = True
    try:
        while left or offers:
            if left and (has_next or not offers):
                offer = _Offer(left.pop(0), monotonic())
                offers[asyncio.ensure_future(_offer(reply, offer, nodes))] = offer
            timeout = SLOW_AFTER_SECONDS if left else None
            done, _ = await asyncio.wait(offers, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                offer, result = offers.pop(each), each.result()
                if isinstance(result, Published):
                    silent = [offer for task, offer in offers.items() if not task.done()]
                    return Tried(result, [*refusals, *_distrust_slow(silent, nodes)])
                refusals.append(_refusal(offer.node, result))
            has_next = bool(done) or nodes.may_hedge()
        return Tried(None, refusals)
    finally:
        for each in offers:
            each.cancel()


class _Offer(NamedTuple):
    """A reply is offered to a node since a monotonic time."""

    node: WakuNode
    since: float


async def _offer(reply: Outgoing, offer: _Offer, nodes: Nodes) -> Published | NodeError:
    """Offer a reply to one node, and note whether the node works."""
    message, node = reply.message, offer.node
    try:
        await node.publish(reply.pubsub_topic, message)
    except NodeError as error:
        if not isinstance(error, MessageTooLarge):
            nodes.failed(node, error)
        return error
    nodes.answered(node, monotonic() - offer.since)
    return Published(message_hash(reply.pubsub_topic, message), node.url, node.name, clock.now())


def _distrust_slow(offers: Iterable[_Offer], nodes: Nodes) -> Iterator[Refusal]:
    """Yield a refusal for each node that is slow while another one took the reply, and prefer others for a while."""
    for node, since in offers:
        if monotonic() - since >= SLOW_AFTER_SECONDS:
            nodes.failed(node, slow := Slow(f"{node.name} is slow"))
            yield _refusal(node, slow)


def _refusal(node: WakuNode, error: NodeError) -> Refusal:
    return Refusal(node.name, type(error).__name__, error.code)


def log_refusals(refusals: Iterable[Refusal]) -> None:
    """Log and count the refusals of nodes, with one line for each kind."""
    for (node, error, code), number in Counter(refusals).items():
        log.warning("node_refused_replies", node=node, error=error, code=code, count=number)
        PUBLISH_ERRORS.labels(node, code).inc(number)


# Sending --------------------------------------------------------------------------------------------------------------
# A send is cut off before its lease ends, so that its result is recorded by then.
TIMEOUT_SECONDS = 0.9 * LEASE.total_seconds()
# A message needs a second or two from publication to archive.
CHECK_AFTER_SECONDS = 3.0
# Five seconds less than the archive window, for transport and for clocks that differ.
FRESH_NS = 15 * 10**9
MAX_REPEATS = 4
# Limit of repeated publications, which leaves capacity for new replies while a network loses everything.
REPEATS = (Limit(200, 2.0),)


@dataclass(slots=True)
class Sent:
    """What is known about a reply after it was sent. A verdict is None where no query was made."""

    reply: Outgoing
    before: Verdict | None = None  # about earlier publications
    tried: Tried | None = None  # None if it was not offered to nodes
    after: Verdict | None = None  # about the publication of this send

    @property
    def published(self) -> Published | None:
        """Return the publication of this send, if a node took the reply."""
        return self.tried.published if self.tried else None

    @property
    def is_missing(self) -> bool:
        """Return whether a node took the reply, and no store that answered has it."""
        return Verdict.MISSING in (self.after, self.before if self.reply.published_at else None)

    @property
    def attributes(self) -> dict[str, object]:
        """Return the attributes of this send in the trace of the envelope."""
        outcome = "refused" if self.published is None else "taken"
        node = {"node": self.published.name} if self.published else {}
        return {"attempt": self.reply.attempt_count, "outcome": outcome, **node}


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
                if sent.published and not sent.reply.repeat_count:
                    await self._confirm(sent, sent.published)
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
        sent.tried, began_ns = Tried(), time_ns()
        try:
            sent.tried = await publish_one(sent.reply, self._nodes)
        finally:
            attributes, is_error = sent.attributes, sent.published is None
            step("publish", reply.envelope_hash, attributes, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)

    async def _confirm(self, sent: Sent, published: Published) -> None:
        """Ask the stores for a reply that was just published. A later repetition is asked for when it is due."""
        if sent.reply.needs_confirmation and self._stores.exist:
            await asyncio.sleep(CHECK_AFTER_SECONDS)
            sent.after = await self._ask(sent.reply, published.hash, published.node)

    async def _ask(self, reply: Outgoing, reply_hash: bytes, taker: str) -> Verdict:
        began_ns = time_ns()
        verdict = await self._stores.ask(reply_hash, taker)
        attributes, is_error = {"outcome": verdict.name.lower()}, verdict is not Verdict.CONFIRMED
        step("confirm", reply.envelope_hash, attributes, began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        return verdict
