"""Handing replies to a node, and to another one when that does not take them.

Published twice within the archive window a reply is the same bytes, which the network shows once. Store nodes keep a
message only while its timestamp is within 20 s of their clock: later it gets a new one, and so is a new message.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

import structlog
from django.db import connection
from django.db.models import Case, Q, Value, When

from measuring.batches import count, observe
from notifications.connections import submit
from waku_bridge.codec.waku_message import message_hash
from waku_bridge.messages import WakuMessage
from waku_bridge.metrics import (
    PUBLISH_ERRORS,
    PUBLISH_SECONDS,
    REPLIES_ABANDONED,
    REPLIES_PUBLISHED,
    REPLIES_REPUBLISHED,
)
from waku_bridge.models import OutboundReply
from waku_bridge.node import MessageTooLarge, NodeError, NoPeers
from waku_bridge.outbound.nodes import Nodes

log = structlog.get_logger(__name__)
State = OutboundReply.State

# Five seconds less than the archive window, for the way and for clocks that differ.
FRESH_NS = 15 * 10**9
# What no node takes is tried again after so long, then after twice and three times as long, and so on.
RETRY_AFTER = timedelta(seconds=10)
MOST_RETRIES_APART = 6
# Clients repeat a registration for days; nobody waits an hour for one answer.
GIVE_UP_AFTER = timedelta(hours=1)
# From publication to archive takes a second or two; for each repetition twice as long.
CHECK_AFTER = timedelta(seconds=3)
# How many replies one task publishes at once.
BATCH_SIZE = 64

# One that is due: not tried yet, or its time has come. (A new one is due at once, also where the clock is behind that
# of the worker which recorded it.) A lost claim costs nothing but the time until the next attempt.
CLAIM = """
    UPDATE waku_bridge_outboundreply
    SET attempt_count = attempt_count + 1,
        next_attempt_at = %(now)s + %(retry_after)s * least(attempt_count + 1, %(most_apart)s),
        timestamp_ns = CASE WHEN %(now_ns)s - timestamp_ns > %(fresh_ns)s THEN %(now_ns)s ELSE timestamp_ns END
    WHERE id IN (
        SELECT id FROM waku_bridge_outboundreply
        WHERE id = ANY(%(ids)s) AND state = 'pending' AND (attempt_count = 0 OR next_attempt_at <= %(now)s)
        ORDER BY id FOR UPDATE SKIP LOCKED
    )
    RETURNING *
"""
# Only what is still pending: another worker may have taken over and be further on.
RECORD = """
    UPDATE waku_bridge_outboundreply AS reply
    SET state = 'published', published_at = %s, next_attempt_at = item.check_at,
        node = item.node, message_hash = item.hash
    FROM unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::bytea[]) AS item (id, check_at, node, hash)
    WHERE reply.id = item.id AND reply.state = 'pending'
"""


Refusals = Counter[tuple[str, str, str]]  # by node, kind of error, and code


@dataclass(frozen=True, slots=True)
class Published:
    """A reply that a node took: under which hash (32 bytes), which node (URL), by which way."""

    reply: OutboundReply
    hash: bytes
    node: str
    name: str
    way: str


def publish(reply_ids: Sequence[int], nodes: Nodes, *, now: datetime) -> None:
    """Hand replies to the first node that takes them. What no node takes stays in the outbox for the next sweep."""
    replies = _claim(reply_ids, now=now)
    if not replies:
        return
    started, refusals = monotonic(), Counter[tuple[str, str, str]]()
    tried = submit(_publish_all(replies, nodes, refusals)).result()
    _tell(refusals)
    at = now + timedelta(seconds=monotonic() - started)
    taken = [published for published in tried if published]
    _record(taken, at=at)
    if len(taken) < len(replies):
        log.warning("replies_not_published", count=len(replies) - len(taken))
        _leave_to_the_stores({reply.pk for reply in replies} - {published.reply.pk for published in taken}, at=at)


def _claim(reply_ids: Sequence[int], *, now: datetime) -> list[OutboundReply]:
    """Take replies that nobody else is publishing."""
    parameters = {
        "ids": list(reply_ids),
        "now": now,
        "now_ns": time.time_ns(),
        "fresh_ns": FRESH_NS,
        "retry_after": RETRY_AFTER,
        "most_apart": MOST_RETRIES_APART,
    }
    return list(OutboundReply.objects.raw(CLAIM, parameters))


async def _publish_all(replies: Sequence[OutboundReply], nodes: Nodes, refusals: Refusals) -> list[Published | None]:
    return await asyncio.gather(*(_publish_one(reply, nodes, refusals) for reply in replies))


async def _publish_one(reply: OutboundReply, nodes: Nodes, refusals: Refusals) -> Published | None:
    message = WakuMessage(bytes(reply.payload or b""), reply.content_topic, reply.timestamp_ns)
    # The node that took it before comes last: for two minutes gossip passes on nothing that it has seen.
    for node in nodes.in_order(last=reply.node):
        started = monotonic()
        try:
            way = await node.publish(reply.pubsub_topic, message)
        except NodeError as error:
            refusals[node.name, type(error).__name__, error.code] += 1
            if not _is_about_the_message(error, reply):
                nodes.failed(node, error)
        else:
            nodes.answered(node, monotonic() - started)
            return Published(reply, message_hash(reply.pubsub_topic, message), node.url, node.name, way)
    return None


def _is_about_the_message(error: NodeError, reply: OutboundReply) -> bool:
    """Rather than about the node: that it is too large, or that everybody may have seen it."""
    return isinstance(error, MessageTooLarge) or (isinstance(error, NoPeers) and reply.attempt_count > 1)


def _tell(refusals: Refusals) -> None:
    for (node, error, code), number in refusals.items():
        log.warning("node_refused_replies", node=node, error=error, code=code, count=number)
        PUBLISH_ERRORS.labels(node, code).inc(number)


def _record(taken: Sequence[Published], *, at: datetime) -> None:
    if not taken:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            RECORD,
            [
                at,
                [published.reply.pk for published in taken],
                [at + check_after(published.reply) for published in taken],
                [published.node for published in taken],
                [published.hash for published in taken],
            ],
        )
    first = [published.reply for published in taken if not published.reply.published_at]
    count(REPLIES_PUBLISHED, [(published.name, published.way) for published in taken])
    count(REPLIES_REPUBLISHED, [_form(published) for published in taken if published.reply.published_at])
    observe(PUBLISH_SECONDS, [(at - reply.created_at).total_seconds() for reply in first])


def _form(published: Published) -> tuple[str]:
    return ("identical" if published.hash == published.reply.message_hash else "restamped",)


def check_after(reply: OutboundReply) -> timedelta:
    return CHECK_AFTER * int(2**reply.repeat_count)


def _leave_to_the_stores(reply_ids: set[int], *, at: datetime) -> None:
    """What was published before may be refused now because every node has seen it: the stores will tell."""
    refused = OutboundReply.objects.filter(pk__in=reply_ids, state=State.PENDING, published_at__isnull=False)
    refused.update(state=State.PUBLISHED, next_attempt_at=at + CHECK_AFTER)


def hand_out_left_behind(*, now: datetime, limit: int, patience: timedelta) -> list[int]:
    """Replies to put into the queue again: no node took them, or their queue entry is older than ``patience``."""
    pending = OutboundReply.objects.filter(state=State.PENDING)
    given_up = pending.filter(created_at__lte=now - GIVE_UP_AFTER).update(state=_given_up(), payload=None)
    REPLIES_ABANDONED.inc(given_up)
    due = pending.filter(
        Q(attempt_count__gt=0, enqueued_at__lte=now - RETRY_AFTER) | Q(enqueued_at__lte=now - patience),
        next_attempt_at__lte=now,
    )
    ids = list(due.order_by("next_attempt_at").values_list("pk", flat=True)[:limit])
    OutboundReply.objects.filter(pk__in=ids).update(enqueued_at=now)
    return ids


def _given_up() -> Case:
    return Case(When(published_at__isnull=False, then=Value(State.UNCONFIRMED)), default=Value(State.ABANDONED))
