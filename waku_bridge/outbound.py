"""Replies on their way out: encoded and kept in the outbox first, published after the transaction."""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

import structlog
from django.db import transaction
from django.db.models import F, Q

from notifications import delivery
from notifications.connections import submit
from registrations.inserting import insert_all
from registrations.messages import QueryInfo
from waku_bridge.codec.envelope import Reply as ReplyBody
from waku_bridge.codec.envelope import encode_reply
from waku_bridge.identity import server_identity
from waku_bridge.messages import MessageType, PushResponse, QueryResponse, RegistrationResponse, WakuMessage
from waku_bridge.models import InboundEnvelope, OutboundReply
from waku_bridge.node import NodeError, WakuNode

log = structlog.get_logger(__name__)
State = OutboundReply.State

# Store nodes keep a message only while its timestamp is within 20 s of their clock: later it gets a new one.
FRESH_NS = 15 * 10**9
RETRY_AFTER = timedelta(seconds=10)
# Clients repeat a registration for days; nobody waits an hour for one answer.
GIVE_UP_AFTER = timedelta(hours=1)
# How many replies one task publishes at once.
BATCH_SIZE = 64
# A message must stay below nwaku's 150 KiB; what is left is for wrapping, padding and signatures.
MAX_INFO_BYTES = 140_000
# One small query must not make us publish megabytes: whoever registers a lot has the rest of it left out.
MAX_PARTS = 8

MESSAGE_TYPES: dict[type[ReplyBody], MessageType] = {
    RegistrationResponse: MessageType.REGISTRATION_RESPONSE,
    QueryResponse: MessageType.QUERY_RESPONSE,
    PushResponse: MessageType.RESPONSE,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to the envelope of that hash, for the key (33 bytes) that signed its message."""

    envelope_hash: bytes
    recipient: bytes
    body: ReplyBody


def record(replies: Sequence[Reply], *, now: datetime) -> list[int]:
    """Encode replies and put them into the outbox. Belongs into the transaction that made the decisions."""
    shards = _shards(reply.envelope_hash for reply in replies)
    # An envelope that retention removed was received days ago: nobody waits for its answer.
    known = [reply for reply in replies if reply.envelope_hash in shards]
    rows = [row for reply in known for row in _encode(reply, shards[reply.envelope_hash], now=now)]
    insert_all(rows)
    return [row.pk for row in rows]


def answer_requests(request_ids: Iterable[int], *, now: datetime) -> list[int]:
    """Put the answers of those requests into the outbox that can be answered now."""
    with transaction.atomic():
        return record(
            [
                Reply(answer.envelope_hash, answer.reply_to, PushResponse(answer.message_id, answer.reports))
                for answer in delivery.settle(request_ids, now=now)
            ],
            now=now,
        )


def _shards(envelope_hashes: Iterable[bytes]) -> dict[bytes, str]:
    rows = InboundEnvelope.objects.filter(hash__in=set(envelope_hashes)).values_list("hash", "pubsub_topic")
    return {bytes(envelope_hash): pubsub_topic for envelope_hash, pubsub_topic in rows}


def _encode(reply: Reply, pubsub_topic: str, *, now: datetime) -> Iterator[OutboundReply]:
    for part, body in enumerate(islice(_split(reply.body), MAX_PARTS)):
        message = encode_reply(
            body,
            identity=server_identity(),
            recipient=reply.recipient,
            timestamp_ns=time.time_ns(),
            random_bytes=os.urandom,
        )
        yield OutboundReply(
            envelope_hash=reply.envelope_hash,
            part=part,
            message_type=MESSAGE_TYPES[type(body)],
            pubsub_topic=pubsub_topic,
            content_topic=message.content_topic,
            payload=message.payload,
            timestamp_ns=message.timestamp_ns,
            next_attempt_at=now,
            enqueued_at=now,
            created_at=now,
        )


def _split(body: ReplyBody) -> Iterator[ReplyBody]:
    """Long lists of contacts can make an answer larger than the network carries: it goes out in several then."""
    if not isinstance(body, QueryResponse):
        yield body
        return
    batch: list[QueryInfo] = []
    size = 0
    for info in body.info:
        info_size = 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
        if batch and size + info_size > MAX_INFO_BYTES:
            yield QueryResponse(body.message_id, success=True, info=tuple(batch))
            batch, size = [], 0
        batch.append(info)
        size += info_size
    yield QueryResponse(body.message_id, success=body.success, info=tuple(batch))


def publish(reply_ids: Sequence[int], nodes: Sequence[WakuNode], *, now: datetime) -> None:
    """Hand replies to the first node that takes them. What no node takes stays in the outbox for the next sweep."""
    replies = _claim(reply_ids, now=now)
    takers = submit(_publish_all(replies, nodes)).result()
    taken = {reply.pk: node for reply, node in zip(replies, takers, strict=True) if node}
    for node in set(taken.values()):
        OutboundReply.objects.filter(pk__in=[pk for pk, taker in taken.items() if taker == node]).update(
            state=State.PUBLISHED, published_at=now, node=node, payload=None
        )
    if len(taken) < len(replies):
        log.warning("replies_not_published", count=len(replies) - len(taken))


def _claim(reply_ids: Sequence[int], *, now: datetime) -> list[OutboundReply]:
    """Take replies that nobody else is publishing. Published twice they would be the same bytes, which the network
    shows once, so a lost claim costs nothing but the time until the next attempt.
    """
    with transaction.atomic():
        replies = list(
            OutboundReply.objects.select_for_update(skip_locked=True)
            .filter(pk__in=reply_ids, state=State.PENDING)
            # A new reply is due at once, also where the clock is behind that of the worker which recorded it.
            .filter(Q(attempt_count=0) | Q(next_attempt_at__lte=now))
            .order_by("pk")
        )
        OutboundReply.objects.filter(pk__in=[reply.pk for reply in replies]).update(
            attempt_count=F("attempt_count") + 1, next_attempt_at=now + RETRY_AFTER
        )
        _refresh(replies)
    return replies


def _refresh(replies: Iterable[OutboundReply]) -> None:
    now_ns = time.time_ns()
    stale = [reply for reply in replies if now_ns - reply.timestamp_ns > FRESH_NS]
    for reply in stale:
        reply.timestamp_ns = now_ns
    if stale:
        OutboundReply.objects.filter(pk__in=[reply.pk for reply in stale]).update(timestamp_ns=now_ns)


async def _publish_all(replies: Iterable[OutboundReply], nodes: Sequence[WakuNode]) -> list[str]:
    return await asyncio.gather(*(_publish_one(reply, nodes) for reply in replies))


async def _publish_one(reply: OutboundReply, nodes: Sequence[WakuNode]) -> str:
    """The URL of the node that took the reply, or nothing."""
    message = WakuMessage(bytes(reply.payload or b""), reply.content_topic, reply.timestamp_ns)
    for node in nodes:
        try:
            await node.publish(reply.pubsub_topic, message)
        except NodeError as error:
            log.warning("node_refused_reply", node=node.url, error=str(error))
        else:
            return node.url
    return ""


def hand_out_left_behind(*, now: datetime, limit: int, patience: timedelta) -> list[int]:
    """Replies to put into the queue again: no node took them, or their queue entry is older than ``patience``."""
    pending = OutboundReply.objects.filter(state=State.PENDING)
    pending.filter(created_at__lte=now - GIVE_UP_AFTER).update(state=State.ABANDONED, payload=None)
    due = pending.filter(
        Q(attempt_count__gt=0, enqueued_at__lte=now - RETRY_AFTER) | Q(enqueued_at__lte=now - patience),
        next_attempt_at__lte=now,
    )
    ids = list(due.order_by("next_attempt_at").values_list("pk", flat=True)[:limit])
    OutboundReply.objects.filter(pk__in=ids).update(enqueued_at=now)
    return ids
