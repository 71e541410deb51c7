"""Publication of replies: each is offered to a node, and to the next one when the first refuses it or is slow.

Store nodes keep a message only while its timestamp is within 20 s of their clock, the archive window. A reply that is
published twice within this window has the same bytes, and clients receive it once. A later repetition gets a new
timestamp, which makes it a new message.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, time_ns
from typing import LiteralString, NamedTuple

import structlog

from kit.batches.batch import LONG_AGO, Wakeup
from kit.batches.inflight import InFlight
from kit.db.clock import clock
from kit.db.partitions import IS_UNDER_WAY, UNDER_WAY, day_of
from kit.db.statements import array_value, fetch, unindexed, write_rows
from kit.metrics.batches import count, observe
from kit.tracing.spans import Role, step
from waku_bridge.codec.topics import message_hash
from waku_bridge.metrics import (
    PUBLISH_ERRORS,
    PUBLISH_SECONDS,
    REPLIES_ABANDONED,
    REPLIES_PUBLISHED,
    REPLIES_REPUBLISHED,
)
from waku_bridge.models import OutboundReply
from waku_bridge.node import MessageTooLarge, NodeError, Slow, WakuNode
from waku_bridge.node.client import Nodes
from waku_bridge.outbound.recording import Outgoing

log = structlog.get_logger(__name__)
State = OutboundReply.State

# A node that has not answered for this long is slow, and the next one is offered the same reply (a hedged request). A
# client waits three seconds.
SLOW_AFTER_SECONDS = 0.5
# Five seconds less than the archive window, for transport and for clocks that differ.
FRESH_NS = 15 * 10**9
# A reply that no node takes is offered again after this time. The wait grows by the same time with each attempt, up to
# `MAX_RETRIES_APART` times as long.
RETRY_AFTER = timedelta(seconds=10)
MAX_RETRIES_APART = 6
# Clients repeat a registration for days, but none waits an hour for one answer. Errors to unproven keys are given up
# early: anybody can cause any number, and nodes that refuse them should not be offered all of them for an hour.
GIVE_UP_AFTER = timedelta(hours=1)
GIVE_UP_ERRORS_AFTER = timedelta(minutes=1)
# A message needs a second or two from publication to archive. The time doubles with each repetition.
CHECK_AFTER = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Published:
    """A reply that a node took. ``hash`` has 32 bytes, and ``node`` is a URL."""

    reply: Outgoing
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

    reply: Outgoing
    published: Published | None = None
    refusals: Sequence[Refusal] = ()


class Publisher(InFlight[Tried]):
    """Publisher of replies on the event loop of this process. It keeps the results until a batch has recorded them."""

    def __init__(self, nodes: Nodes, wakeup: Wakeup) -> None:
        super().__init__(wakeup)
        self._nodes = nodes

    def publish(self, replies: Iterable[Outgoing]) -> None:
        """Start publishing. It is called after the commit that stored the replies."""
        self.start([partial(self._publish, reply) for reply in replies])

    async def _publish(self, reply: Outgoing) -> Tried:
        tried, began_ns = Tried(reply), time_ns()
        try:
            tried = await publish_one(reply, self._nodes)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the reply stays in the outbox
            log.error("publishing_failed", error=type(error).__name__)  # noqa: TRY400 - it may quote the reply
        is_error = tried.published is None
        step("publish", reply.envelope_hash, _attributes(tried), began_ns=began_ns, role=Role.CLIENT, is_error=is_error)
        return tried


def _attributes(tried: Tried) -> dict[str, object]:
    """Return the attributes of this publication in the trace of its envelope."""
    taken, attempt = tried.published, tried.reply.attempt_count
    if taken is None:
        return {"attempt": attempt, "outcome": "refused"}
    return {"attempt": attempt, "outcome": "taken", "node": taken.name}


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
                    return Tried(reply, result, [*refusals, *_distrust_slow(silent, nodes)])
                refusals.append(_refusal(offer.node, result))
            has_next = bool(done) or nodes.may_hedge()
        return Tried(reply, None, refusals)
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
    return Published(reply, message_hash(reply.pubsub_topic, message), node.url, node.name, clock.now())


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


# It changes only rows that are still pending, because another worker may have taken over and be further on. It also
# compares the envelope hash, because after a fail-over another reply may have the same id.
_IDS = "%(ids)b::bigint[]"
_of = partial(array_value, _IDS, "reply.id")
_RECORD = f"""
    UPDATE waku_bridge_outboundreply_under_way AS reply
    SET state = '{State.PUBLISHED}', published_at = {_of("ats", "timestamptz")},
        next_attempt_at = {_of("checks", "timestamptz")}, node = {_of("nodes", "text")},
        message_hash = {_of("hashes", "bytea")}
    WHERE reply.id = ANY ({_IDS}) AND reply.envelope_hash = {_of("questions", "bytea")}
        AND {unindexed("reply.state")} = '{State.PENDING}'
"""
_TAKEN = f"""
    reply.id = ANY ({_IDS}) AND reply.envelope_hash = ANY (%(questions)b::bytea[])
    AND {unindexed("reply.state")} = '{State.PENDING}'
"""
_END = f"""
    WITH discarded AS (DELETE FROM waku_bridge_outboundreply_under_way AS reply WHERE {_TAKEN} AND is_discarded)
    UPDATE waku_bridge_outboundreply AS reply
    SET state = '{State.UNCONFIRMED}', published_at = {_of("ats", "timestamptz")}, node = {_of("nodes", "text")},
        message_hash = {_of("hashes", "bytea")}, payload = NULL, ended_on = %(today)s
    WHERE reply.{IS_UNDER_WAY} AND {_TAKEN} AND NOT is_discarded
"""


def record_published(taken: Sequence[Published], *, now: datetime) -> None:
    """Write which node took each reply, in a transaction of the caller. Those that need no confirmation end with it."""
    for sql, needs_confirmation in ((_RECORD, True), (_END, False)):
        rows = [
            (each.reply.id, each.at, each.at + check_after(each.reply), each.node, each.hash, each.reply.envelope_hash)
            for each in taken
            if each.reply.needs_confirmation is needs_confirmation
        ]
        write_rows(sql, ("ids", "ats", "checks", "nodes", "hashes", "questions"), rows, today=day_of(now))
    first = [published for published in taken if not published.reply.published_at]
    count(REPLIES_PUBLISHED, [(published.name,) for published in taken])
    count(REPLIES_REPUBLISHED, [_form(published) for published in taken if published.reply.published_at])
    took = [(published.at - published.reply.created_at).total_seconds() for published in first]
    observe(PUBLISH_SECONDS, took, of=(published.reply.envelope_hash for published in first))


def _form(published: Published) -> tuple[str]:
    return ("identical" if published.hash == published.reply.message_hash else "restamped",)


def check_after(reply: Outgoing) -> timedelta:
    """Return the time from the publication of a reply to the first query for it."""
    return CHECK_AFTER * int(2**reply.repeat_count)


def record_refused(refused: Sequence[Outgoing], *, now: datetime) -> None:
    """Write that no node took these replies.

    A reply that was published before counts as published again, and the stores decide: they may have been late with
    it. A reply that was never published stays pending, and is offered again when it is due.
    """
    if refused:
        log.warning("replies_not_published", count=len(refused))
        again = OutboundReply.objects.filter(
            ended_on__gte=UNDER_WAY,
            pk__in=[reply.id for reply in refused],
            envelope_hash__in=[reply.envelope_hash for reply in refused],
            state=State.PENDING,
            published_at__isnull=False,
        )
        again.update(state=State.PUBLISHED, next_attempt_at=now + CHECK_AFTER)


_PENDING: LiteralString = f"""
    FROM waku_bridge_outboundreply_under_way
    WHERE state = '{State.PENDING}' AND next_attempt_at >= %(nothing_before)s
"""
PENDING: LiteralString = f"SELECT {_PENDING} AND next_attempt_at <= %(now)s"
OLDEST_PENDING: LiteralString = f"SELECT min(next_attempt_at) {_PENDING}"
_CLAIM = f"""
    WITH due AS (
        SELECT id {_PENDING} AND next_attempt_at <= %(now)s
        ORDER BY next_attempt_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    )
    UPDATE waku_bridge_outboundreply_under_way AS reply
    SET attempt_count = attempt_count + 1,
        next_attempt_at = %(now)s + %(retry_after)s * least(attempt_count + 1, %(max_apart)s),
        timestamp_ns = CASE WHEN %(now_ns)s - timestamp_ns > %(fresh_ns)s THEN %(now_ns)s ELSE timestamp_ns END
    WHERE reply.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING reply.id, pubsub_topic, content_topic, payload, timestamp_ns, created_at, attempt_count, repeat_count,
        node, message_hash, published_at, envelope_hash, needs_confirmation
"""


def claim_pending(*, limit: int, now: datetime, nothing_before: datetime = LONG_AGO) -> list[Outgoing]:
    """Take replies that are due to be published again, or that their own worker did not publish."""
    rows = fetch(
        _CLAIM,
        {
            "limit": limit,
            "now": now,
            "nothing_before": nothing_before,
            "now_ns": clock.now_ns(),
            "fresh_ns": FRESH_NS,
            "retry_after": RETRY_AFTER,
            "max_apart": MAX_RETRIES_APART,
        },
    )
    return [Outgoing._make(row) for row in rows]


_GIVE_UP = f"""
    WITH old AS (
        SELECT id, envelope_hash, is_discarded {_PENDING} AND next_attempt_at <= %(now)s
            AND created_at <= CASE WHEN is_discarded AND NOT needs_confirmation THEN %(old_error)s::timestamptz
                ELSE %(old)s::timestamptz END
        ORDER BY next_attempt_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ), discarded AS (
        DELETE FROM waku_bridge_outboundreply_under_way
        WHERE id = ANY (ARRAY(SELECT id FROM old WHERE is_discarded)) RETURNING id
    ), kept AS (
        UPDATE waku_bridge_outboundreply AS reply
        SET state = CASE WHEN published_at IS NULL THEN '{State.ABANDONED}' ELSE '{State.UNCONFIRMED}' END,
            payload = NULL, ended_on = %(today)s
        WHERE reply.{IS_UNDER_WAY} AND reply.id = ANY (ARRAY(SELECT id FROM old WHERE NOT is_discarded))
            AND reply.envelope_hash = ANY (ARRAY(SELECT envelope_hash FROM old))  -- then each index begins with a key
        RETURNING reply.id
    )
    SELECT id FROM discarded UNION ALL SELECT id FROM kept
"""


def give_up(*, limit: int, now: datetime, nothing_before: datetime = LONG_AGO) -> int:
    """Close replies that no node took within `GIVE_UP_AFTER`, and return their number. No client waits for them.

    Errors to unproven keys end after `GIVE_UP_ERRORS_AFTER`.
    """
    old = {"old": now - GIVE_UP_AFTER, "old_error": now - GIVE_UP_ERRORS_AFTER}
    times = {"now": now, "today": day_of(now), "nothing_before": nothing_before}
    given_up = len(fetch(_GIVE_UP, {"limit": limit, **times, **old}))
    REPLIES_ABANDONED.inc(given_up)
    return given_up
