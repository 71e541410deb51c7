"""Encoding of replies into the outbox, in the transaction that made the decisions, before they are published."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import LiteralString, NamedTuple

from kit.db.base import Written
from kit.db.clock import clock
from kit.db.partitions import with_days
from kit.db.statements import write
from notifications.messages import Answer
from registrations.messages import QueryInfo
from waku_bridge.codec.envelope import encode
from waku_bridge.codec.topics import message_hash
from waku_bridge.identity import identity_of
from waku_bridge.messages import (
    MessageType,
    PushResponse,
    QueryResponse,
    RegistrationResponse,
    ReplyBody,
    WakuMessage,
)
from waku_bridge.models import OutboundReply

# Below nwaku's limit of 150 KiB for a message: the difference is for wrapping, padding and signatures.
MAX_INFO_BYTES = 140_000
# Limit of the parts of an answer, so that a small query does not make us publish megabytes. The rest is left out.
MAX_PARTS = 8
PUBLIC_KEY_BYTES = 33
# The worker that decides on a reply has this long to publish it and to ask the stores for it. Then any worker acts on
# it, while a second publication still has the same bytes: see `sending`.
LEASE = timedelta(seconds=12)

MESSAGE_TYPES: dict[type[ReplyBody], MessageType] = {
    RegistrationResponse: MessageType.REGISTRATION_RESPONSE,
    QueryResponse: MessageType.QUERY_RESPONSE,
    PushResponse: MessageType.RESPONSE,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to the envelope with this hash, for the key (33 bytes) that signed its message, on its shard.

    ``sender`` is the key (33 bytes) of the identity of ours that signs the answer, or empty for the server's first one.
    Several identities may answer one envelope. Each of them numbers its parts from its own ``first_part``. A reply that
    is discarded leaves no row once it has ended. One that is not confirmed ends when a node has taken it.
    """

    envelope_hash: bytes
    pubsub_topic: str
    recipient: bytes
    body: ReplyBody
    sender: bytes = b""
    first_part: int = 0
    is_discarded: bool = False
    needs_confirmation: bool = True


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


def return_address(author: bytes, pubsub_topic: str, *, sender: bytes = b"") -> bytes:
    """Return the return address of a request, as stored with it: author ‖ our identity that it addressed ‖ shard."""
    return author + sender + pubsub_topic.encode()


def reply_to(answer: Answer) -> Reply:
    """Return the message that carries an answer to a request."""
    author, rest = answer.reply_address[:PUBLIC_KEY_BYTES], answer.reply_address[PUBLIC_KEY_BYTES:]
    # Requests that were stored before the server could have several identities name none. A shard begins with a slash,
    # a key with 2 or 3.
    sender = b"" if rest.startswith(b"/") else rest[:PUBLIC_KEY_BYTES]
    pubsub_topic = rest[len(sender) :].decode()
    body = PushResponse(answer.message_id, answer.reports)
    return Reply(answer.source_key, pubsub_topic, author, body, sender, is_discarded=not answer.is_traceable)


# A second answer to the same envelope is not stored: another worker's was first, and may have been confirmed since.
# An answer is made in the transaction that ends its envelope or request, so two of them are never days apart.
_INSERT: LiteralString = f"""
    INSERT INTO waku_bridge_openreply
        (envelope_hash, part, message_type, pubsub_topic, content_topic, payload, timestamp_ns,
         is_discarded, needs_confirmation, state, attempt_count, repeat_count, due_at, created_at, node)
    SELECT *, '{OutboundReply.State.PENDING}', 0, 0, %(due_at)s, %(now)s, ''
    FROM unnest(%(envelope_hash)b::bytea[], %(part)b::smallint[], %(message_type)b::smallint[],
                %(pubsub_topic)b::text[], %(content_topic)b::text[], %(payload)b::bytea[], %(timestamp_ns)b::bigint[],
                %(is_discarded)b::boolean[], %(needs_confirmation)b::boolean[])
        AS new (envelope_hash, part, message_type, pubsub_topic, content_topic, payload, timestamp_ns, is_discarded,
                needs_confirmation)
    WHERE NOT EXISTS (
        SELECT FROM waku_bridge_endedreply AS known
        WHERE ended_on IN ({{days}}) AND known.envelope_hash = new.envelope_hash AND known.part = new.part
    )
    ON CONFLICT (envelope_hash, part) DO NOTHING
    RETURNING id, envelope_hash, part
"""
_INSERTED = (
    *("envelope_hash", "part", "message_type", "pubsub_topic", "content_topic", "payload", "timestamp_ns"),
    *("is_discarded", "needs_confirmation"),
)


class Recorded(NamedTuple):
    """Replies that were put into the outbox."""

    sealed: Sequence[Outgoing]
    written: Written | None = None

    def outgoing(self) -> list[Outgoing]:
        """Return the replies to publish. Call it after the commit."""
        rows = self.written.rows() if self.written else []
        ids = {(envelope_hash, part): reply_id for reply_id, envelope_hash, part in rows}
        numbered = [reply._replace(id=ids.pop((reply.envelope_hash, reply.part), 0)) for reply in self.sealed]
        return [reply for reply in numbered if reply.id]


def record(replies: Sequence[Reply], *, now: datetime) -> Recorded:
    """Encode replies and put them into the outbox, in the transaction that made the decisions.

    The caller has claimed them: it sends them after the commit. After `LEASE` any worker acts on those that are left.
    """
    sealed = [part for reply in replies for part in _seal(reply, now=now)]
    if not sealed:
        return Recorded([])
    columns = {name: [getattr(reply, name) for reply in sealed] for name in _INSERTED}
    return Recorded(sealed, write(with_days(_INSERT, now), {"now": now, "due_at": now + LEASE, **columns}))


def _seal(reply: Reply, *, now: datetime) -> Iterator[Outgoing]:
    """Yield the parts of a reply as the outbox stores them. They have no id yet."""
    for part, body in enumerate(islice(_split(reply.body), MAX_PARTS), reply.first_part):
        message = encode(
            body,
            signer=identity_of(reply.sender),
            recipient=reply.recipient,
            timestamp_ns=clock.now_ns(),
            random_bytes=os.urandom,
        ).message
        yield Outgoing(
            id=0,
            due_at=now + LEASE,
            envelope_hash=reply.envelope_hash,
            part=part,
            message_type=MESSAGE_TYPES[type(body)],
            pubsub_topic=reply.pubsub_topic,
            content_topic=message.content_topic,
            payload=message.payload,
            timestamp_ns=message.timestamp_ns,
            created_at=now,
            needs_confirmation=reply.needs_confirmation,
            is_discarded=reply.is_discarded,
        )


def _split(body: ReplyBody) -> Iterator[ReplyBody]:
    """Yield the answer in parts, because long lists of contacts can make it larger than the network carries."""
    if not isinstance(body, QueryResponse):
        yield body
        return
    batch: list[QueryInfo] = []
    size = 0
    for info in body.info:
        info_size = 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)
        if batch and size + info_size > MAX_INFO_BYTES:
            yield QueryResponse(body.message_id, success=True, info=tuple(batch))
            batch = []
            size = 0
        batch.append(info)
        size += info_size
    yield QueryResponse(body.message_id, success=body.success, info=tuple(batch))
