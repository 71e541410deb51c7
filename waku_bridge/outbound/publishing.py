"""Publication of a reply: it is offered to a node, and to the next one when the first refuses it or is slow."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from time import monotonic
from typing import NamedTuple

import structlog

from kit.db.clock import clock
from waku_bridge.codec.topics import message_hash
from waku_bridge.dialect import MessageTooLarge, NodeError, Slow
from waku_bridge.metrics import PUBLISH_ERRORS
from waku_bridge.node import Nodes, WakuNode
from waku_bridge.outbound.recording import Outgoing

log = structlog.get_logger(__name__)

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
