"""Replies are encoded and kept in the outbox first, in the transaction that made the decision."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from django.db import transaction

from notifications import delivery
from registrations.inserting import insert_all
from registrations.messages import QueryInfo
from waku_bridge.codec.envelope import Reply as ReplyBody
from waku_bridge.codec.envelope import encode_reply
from waku_bridge.identity import server_identity
from waku_bridge.messages import MessageType, PushResponse, QueryResponse, RegistrationResponse
from waku_bridge.models import InboundEnvelope, OutboundReply

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
