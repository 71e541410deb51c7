"""The outbox of a worker process: the rows of replies, and its steps in a batch.

    new replies ──encode, insert──┐                                 ┌──▶ done: history
                                  ├──claimed──▶ commit ──▶ Sends ───┤
    overdue replies ─────take─────┘                                 └──▶ again, due later

A reply is encoded in the transaction that made the decision. A row is claimed until it is due, and whoever finds it due
then acts on it: its worker has died. The claim is its id with its ``due_at``, and a result changes only a row whose
claim still holds: no row that another worker has taken meanwhile, and no other one with the same id after a fail-over.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, LiteralString, NamedTuple

import structlog

from kit.batches.batch import Batch, Step, Work
from kit.db.base import Written, array_value, fetch, write, write_rows
from kit.db.clock import clock, day_of, with_days
from kit.telemetry import count, note, observe
from notifications.messages import Answer
from notifications.metrics import LEFT_BEHIND
from registrations.messages import QueryInfo
from waku_bridge.codec.envelope import encode
from waku_bridge.codec.wire import TYPES
from waku_bridge.messages import (
    BRIDGE,
    PushResponse,
    QueryResponse,
    ReplyBody,
)
from waku_bridge.metrics import (
    PUBLISH_SECONDS,
    REPLIES_ABANDONED,
    REPLIES_CONFIRMED,
    REPLIES_PUBLISHED,
    REPLIES_REPUBLISHED,
    REPLIES_UNCHECKED,
    REPLIES_UNCONFIRMED,
)
from waku_bridge.models import ReplyFacts
from waku_bridge.outbound.sending import (
    CHECK_AFTER_SECONDS,
    LEASE,
    MAX_REPEATS,
    Outgoing,
    Sends,
    Sent,
    Verdict,
    log_refusals,
)
from waku_bridge.query_topics import identity_of

log = structlog.get_logger(__name__)
State = ReplyFacts.State

# New replies ----------------------------------------------------------------------------------------------------------
# Limit of the installations in a message. Below nwaku's limit of 150 KiB: the difference is for wrapping, padding and
# signatures.
MAX_INFO_BYTES = 140_000
# Limit of the parts of an answer, so that a small query does not make us publish megabytes. The rest is left out.
MAX_PARTS = 8
PUBLIC_KEY_BYTES = 33


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
    SELECT *, '{State.PENDING}', 0, 0, %(due_at)s, %(now)s, ''
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
    """Replies that were put into the outbox, and the statement that did it."""

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
            message_type=TYPES[type(body)],
            pubsub_topic=reply.pubsub_topic,
            content_topic=message.content_topic,
            payload=message.payload,
            timestamp_ns=message.timestamp_ns,
            created_at=now,
            needs_confirmation=reply.needs_confirmation,
            is_discarded=reply.is_discarded,
        )


def size_of(info: QueryInfo) -> int:
    """Return how many bytes an installation takes in an answer, at most."""
    return 256 + sum(len(entry) + 4 for entry in info.allowed_key_list)


def _split(body: ReplyBody) -> Iterator[ReplyBody]:
    """Yield the answer in parts, because long lists of contacts can make it larger than the network carries."""
    if not isinstance(body, QueryResponse):
        yield body
        return
    batch: list[QueryInfo] = []
    size = 0
    for info in body.info:
        info_size = size_of(info)
        if batch and size + info_size > MAX_INFO_BYTES:
            yield QueryResponse(body.message_id, success=True, info=tuple(batch))
            batch = []
            size = 0
        batch.append(info)
        size += info_size
    yield QueryResponse(body.message_id, success=body.success, info=tuple(batch))


# The steps ------------------------------------------------------------------------------------------------------------
# A reply that no node takes is offered again after this time. The wait grows by the same time with each attempt, up to
# `MAX_RETRIES_APART` times as long.
RETRY_AFTER = timedelta(seconds=10)
MAX_RETRIES_APART = 6
# Stores that did not answer are queried again after this time, until the reply was published `UNANSWERED_FOR` ago.
ASK_AGAIN_AFTER = timedelta(seconds=10)
UNANSWERED_FOR = timedelta(seconds=60)
CHECK_AFTER = timedelta(seconds=CHECK_AFTER_SECONDS)
# Clients repeat a registration for days, but none waits an hour for one answer. Errors to unproven keys are given up
# early: anybody can cause any number, and nodes that refuse them should not be offered all of them for an hour.
GIVE_UP_AFTER = timedelta(hours=1)
GIVE_UP_ERRORS_AFTER = timedelta(minutes=1)

_DUE: LiteralString = "FROM waku_bridge_openreply WHERE due_at >= %(nothing_before)s AND due_at <= %(now)s"
OLDEST_DUE: LiteralString = f"SELECT min(due_at) {_DUE}"
_COLUMNS: LiteralString = ", ".join(Outgoing._fields)
_TAKE: LiteralString = f"""
    UPDATE waku_bridge_openreply SET due_at = %(until)s
    WHERE id = ANY (ARRAY(SELECT id {_DUE} ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING {_COLUMNS}
"""
_of = partial(array_value, "%(ids)b::bigint[]", "n.id")
_CLAIMED: LiteralString = f"n.id = ANY (%(ids)b::bigint[]) AND n.due_at = {_of('claimed', 'timestamptz')}"
# What a send changes, both in a row that is due again and in one that ends.
_CHANGES: dict[LiteralString, LiteralString] = {
    "state": _of("state", "text"),
    "attempt_count": _of("attempt_count", "smallint"),
    "repeat_count": _of("repeat_count", "smallint"),
    "timestamp_ns": _of("timestamp_ns", "bigint"),
    "message_hash": _of("message_hash", "bytea"),
    "node": _of("node", "text"),
    "published_at": _of("published_at", "timestamptz"),
}
_CHANGED, _VALUES = ", ".join(_CHANGES), ", ".join(_CHANGES.values())
_AGAIN: LiteralString = f"""
    UPDATE waku_bridge_openreply AS n SET ({_CHANGED}, due_at) = ({_VALUES}, {_of("due_at", "timestamptz")})
    WHERE {_CLAIMED}
"""
_KEPT: LiteralString = "id, envelope_hash, part, message_type, pubsub_topic, content_topic, created_at"
_END: LiteralString = f"""
    WITH ended AS (DELETE FROM waku_bridge_openreply AS n WHERE {_CLAIMED} RETURNING *)
    INSERT INTO waku_bridge_endedreply ({_KEPT}, {_CHANGED}, confirmed_at, ended_on)
    SELECT {_KEPT}, {_VALUES}, {_of("confirmed_at", "timestamptz")}, %(today)s FROM ended AS n WHERE NOT is_discarded
"""
_KEY = ("ids", "claimed", *_CHANGES)
# Longest time that a result waits for other work to share a commit with.
NOTED_WITHIN_SECONDS = 0.5
# Replies that a process has under way while it takes overdue ones.
MAX_UNDER_WAY = 4000


def reply_steps(sends: Sends) -> list[Step]:
    """Return the steps of replies, in the order in which a batch runs them."""
    return [Recording(sends), OverdueReplies(sends), SentReplies(sends)]


class Recording(Step):
    """Step that writes the replies and answers of this batch into the outbox, and sends them after its commit."""

    follows = True

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def work(self, batch: Batch) -> Work[Recorded]:
        answers = [each for each in batch.handed if isinstance(each, Answer) and each.bridge == BRIDGE]
        replies = [each for each in batch.handed if isinstance(each, Reply)]
        recorded = record([*replies, *map(reply_to, answers)], now=batch.now)
        note((reply.envelope_hash, {}) for reply in recorded.sealed)
        return Work(recorded)

    def committed(self, decided: Recorded) -> None:
        self._sends.send(decided.outgoing(), are_new=True)


class OverdueReplies(Step):
    """Step that sends overdue replies, and gives up those that no client waits for any more."""

    oldest: LiteralString = OLDEST_DUE

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def work(self, batch: Batch) -> Work[list[Outgoing]]:
        limit = max(min(batch.limit, MAX_UNDER_WAY - self._sends.under_way), 0)
        found = _take(batch, limit, until=batch.now + LEASE)
        give_up([reply for reply in found if is_too_old(reply, batch.now)], now=batch.now)
        alive = [reply for reply in found if not is_too_old(reply, batch.now)]
        note((reply.envelope_hash, {"attempt": reply.attempt_count + 1}) for reply in alive)
        count(LEFT_BEHIND, {("replies",): sum(not reply.attempt_count for reply in alive)})
        return Work(alive, is_more_left=bool(limit) and len(found) == limit)

    def committed(self, decided: list[Outgoing]) -> None:
        self._sends.send(decided, are_new=False)

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Leave the reply for a while, so that it does not block the others."""
        super().quarantine(error, batch)
        _take(batch, 1, until=batch.now + RETRY_AFTER)


def _take(batch: Batch, limit: int, *, until: datetime) -> list[Outgoing]:
    """Claim the replies that are due, the earliest first. Locked rows are skipped."""
    values = batch.values | {"limit": limit, "until": until}
    return [Outgoing._make(row) for row in fetch(_TAKE, values)]


class SentReplies(Step):
    """Step that records what came of the replies that this process sent."""

    def __init__(self, sends: Sends) -> None:
        self._sends = sends

    def next_at(self) -> float | None:
        return self._sends.first_result_at + NOTED_WITHIN_SECONDS if self._sends.has_results() else None

    def is_under_way(self) -> bool:
        return self._sends.is_publishing()

    def work(self, batch: Batch) -> Work[list[Sent]]:
        batch.taken = results = self._sends.peek(batch.limit)
        note((sent.reply.envelope_hash, sent.attributes) for sent in results)
        settle(results, now=batch.now)
        return Work(results, is_more_left=len(results) == batch.limit)

    def committed(self, decided: list[Sent]) -> None:
        self._sends.recorded(len(decided))
        log_refusals(decided)

    def quarantine(self, error: Exception, batch: Batch) -> None:
        """Drop the result. The reply is sent once more when its lease ends."""
        super().quarantine(error, batch)
        self._sends.recorded(len(batch.taken))

    def again(self, batch: Batch) -> None:
        """Record the result some seconds later."""
        self._sends.again(len(batch.taken))


# Results --------------------------------------------------------------------------------------------------------------


def settle(results: Sequence[Sent], *, now: datetime) -> None:
    """Write what came of replies, in a transaction of the caller."""
    for sent in results:
        sent.state, sent.due_at = _next(sent, now)
    _end([sent for sent in results if not sent.due_at], now=now)
    open_ = [sent for sent in results if sent.due_at]
    write_rows(_AGAIN, (*_KEY, "due_at"), [(*_key(sent), sent.due_at) for sent in open_])
    _count(results)


def _next(sent: Sent, now: datetime) -> tuple[State, datetime | None]:
    """Return the state of a reply, and when it is due again, or None if it ends."""
    reply = sent.reply
    if Verdict.CONFIRMED in (sent.before, sent.after):
        return State.CONFIRMED, None
    if sent.at:
        due_at = _next_query_at(sent, sent.at, now) if reply.needs_confirmation else None
        return State.PUBLISHED if due_at else State.UNCONFIRMED, due_at
    if not reply.published_at:
        return State.PENDING, now + RETRY_AFTER * min(max(reply.attempt_count, 1), MAX_RETRIES_APART)
    if sent.is_offered:  # every node refused the repetition, and the stores decide: they may have been late with it
        return State.PUBLISHED, now + CHECK_AFTER
    is_lost = sent.before is Verdict.MISSING and reply.repeat_count >= MAX_REPEATS
    if is_lost or reply.published_at <= now - UNANSWERED_FOR:
        return State.UNCONFIRMED, None
    return State.PUBLISHED, now + ASK_AGAIN_AFTER


def _next_query_at(sent: Sent, published_at: datetime, now: datetime) -> datetime:
    """Return when the stores are asked for a publication again. The time doubles with each repetition."""
    if sent.after is None:
        return max(published_at + CHECK_AFTER * int(2**sent.reply.repeat_count), now)
    return now if sent.after is Verdict.MISSING else now + ASK_AGAIN_AFTER


def _key(sent: Sent) -> tuple[Any, ...]:
    """Return the claim of a reply and the values of `_CHANGES`."""
    reply = sent.reply
    counts = reply.id, reply.due_at, sent.state, reply.attempt_count, reply.repeat_count, reply.timestamp_ns
    if sent.node:
        return *counts, sent.hash, sent.node.url, sent.at
    if sent.state is State.CONFIRMED and not reply.published_at:  # by a worker that died before it wrote so
        return *counts, reply.hash, "", datetime.fromtimestamp(reply.timestamp_ns / 10**9, UTC)
    return *counts, reply.message_hash, reply.node, reply.published_at


def _end(results: Sequence[Sent], *, now: datetime) -> None:
    rows = [(*_key(sent), now if sent.state is State.CONFIRMED else None) for sent in results]
    write_rows(_END, (*_KEY, "confirmed_at"), rows, today=day_of(now))


def is_too_old(reply: Outgoing, now: datetime) -> bool:
    is_unproven_error = reply.is_discarded and not reply.needs_confirmation
    return reply.created_at <= now - (GIVE_UP_ERRORS_AFTER if is_unproven_error else GIVE_UP_AFTER)


def give_up(replies: Sequence[Outgoing], *, now: datetime) -> None:
    """End replies that no node took, or no store had, for so long that no client waits for them."""
    states = [State.UNCONFIRMED if reply.published_at else State.ABANDONED for reply in replies]
    _end([Sent(reply, state=state) for reply, state in zip(replies, states, strict=True)], now=now)
    count(REPLIES_ABANDONED, {(): len(replies)})


def _count(results: Sequence[Sent]) -> None:
    """Count and log what came of replies."""
    count(REPLIES_PUBLISHED, [(sent.node.name,) for sent in results if sent.node])
    repeated = (sent.hash == sent.reply.message_hash for sent in results if sent.node and sent.reply.published_at)
    count(REPLIES_REPUBLISHED, [("identical" if is_same else "restamped",) for is_same in repeated])
    waited = (sent.at - sent.reply.created_at for sent in results if sent.at and not sent.reply.published_at)
    observe(PUBLISH_SECONDS, (each.total_seconds() for each in waited))
    count(REPLIES_CONFIRMED, {(): sum(sent.state is State.CONFIRMED for sent in results)})
    if missing := sum(sent.is_missing for sent in results):
        count(REPLIES_UNCONFIRMED, {(): missing})
        log.warning("replies_unconfirmed", count=missing)
    if refused := sum(sent.is_refused for sent in results):
        log.warning("replies_not_published", count=refused)
    if lost := [sent for sent in results if sent.state is State.UNCONFIRMED and not sent.node]:
        count(REPLIES_ABANDONED, {(): sum(sent.is_missing for sent in lost)})
        count(REPLIES_UNCHECKED, {(): sum(not sent.is_missing for sent in lost)})
        log.warning("replies_given_up", count=len(lost))
