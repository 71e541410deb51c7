"""Processing of envelopes: it decodes them, has them decided, and records every consequence in the batch's one commit.

It is safe to run twice, and in several workers: the worker that locks an envelope first processes it. An envelope that
cannot be decoded is dropped with its reason. One that fails because of a fault of ours is quarantined, and the other
envelopes of the batch go on.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from typing import LiteralString, NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from kit.batches.batch import LONG_AGO
from kit.buckets.bucket import BucketLimits, Buckets, Charge, Limit, per_minute
from kit.buckets.shared import own_buckets
from kit.db.clock import clock
from kit.db.statements import array_value, fetch, write, write_rows
from kit.metrics import count, observe
from kit.tracing import note
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Accepted, Sending
from notifications.messages import PushRequest
from registrations import lookup, registering
from registrations.messages import QueryInfo, RegistrationMessage
from registrations.quotas import CHANGES
from registrations.routes import find_proven_keys
from registrations.rules import Acceptance, Refusal, check_device_token, check_token_type
from waku_bridge import query_topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError, NotDecryptable
from waku_bridge.codec.keys import DecryptionKey, key_hash
from waku_bridge.identity import identities_by_topic, server_identities, server_identity
from waku_bridge.inbound import faults
from waku_bridge.inbound.queries import Asked, Limits, Verdicts
from waku_bridge.inbox.inbox import ending
from waku_bridge.inbox.priority import BUDGET, BYTES_PER_UNIT
from waku_bridge.messages import (
    BRIDGE,
    Body,
    Decoded,
    MessageType,
    Query,
    QueryResponse,
    Registration,
    RegistrationError,
    RegistrationResponse,
)
from waku_bridge.metrics import ENVELOPES_PROCESSED, INBOX_WAIT_SECONDS
from waku_bridge.models import InboundEnvelope
from waku_bridge.outbound import MAX_PARTS, Reply, return_address

log = structlog.get_logger(__name__)
State = InboundEnvelope.State

# Limit of the payloads that one batch opens: half as many bytes as it may decide, because others wait for each batch.
MAX_BATCH_BYTES = BUDGET * BYTES_PER_UNIT // 2
PROCESS_DIED = "process_died"
# Anybody can cause any number of envelopes that nothing follows from. Of each reason a process keeps this many rows a
# minute, for operators, and of envelopes that cannot be read this many hashes an hour. A further copy of an envelope
# without a hash is opened once more.
ROWS_PER_MINUTE = 10
HASHES_PER_HOUR = 1000
# Limit of the queries about one key that are answered. Clients ask once a day, so a query without an answer costs a day
# without pushes. Others must not be able to use up this limit cheaply.
QUERIES_PER_KEY_PER_MINUTE = 1200
# Limits of the registrations that are answered with an error: of a key with a proven address, and of all others.
ERROR = b"e"  # the bucket of all others; with the digest of a key: its bucket
ERRORS_OF_KEY: BucketLimits = CHANGES
ERRORS: BucketLimits = (Limit(30, 3.0),)

# The error in our answer (71/STATUS-PUSH-NOTIFICATION-SERVER, PushNotificationRegistrationResponse) for each refusal.
REGISTRATION_ERRORS = {
    Refusal.MALFORMED: RegistrationError.MALFORMED_MESSAGE,
    Refusal.STALE_VERSION: RegistrationError.VERSION_MISMATCH,
    Refusal.UNSUPPORTED_TOKEN_TYPE: RegistrationError.UNSUPPORTED_TOKEN_TYPE,
    Refusal.IMPLAUSIBLE_TOKEN: RegistrationError.MALFORMED_MESSAGE,
    Refusal.BAD_APP_TOPIC: RegistrationError.MALFORMED_MESSAGE,
    # A client ignores errors and repeats its registration for days, so it succeeds once there is capacity again.
    Refusal.TOO_MANY_INSTALLATIONS: RegistrationError.INTERNAL_ERROR,
    Refusal.TOO_MANY_NEW: RegistrationError.INTERNAL_ERROR,
    Refusal.FULL: RegistrationError.INTERNAL_ERROR,
}
MESSAGE_TYPES: dict[type[Body], MessageType] = {
    Registration: MessageType.REGISTRATION,
    Query: MessageType.QUERY,
    PushRequest: MessageType.REQUEST,
}

ACCEPTED = frozenset(MESSAGE_TYPES.values())


class Envelope(NamedTuple):
    """One envelope as it waits in the inbox."""

    hash: bytes
    pubsub_topic: str
    content_topic: str
    payload: bytes
    received_at: datetime


class Taken(NamedTuple):
    """Envelopes that this worker alone processes, and whether there are more."""

    envelopes: list[Envelope]
    is_more_left: bool


@dataclass(slots=True)
class Item:
    """One envelope of a batch, opened: its message (None when there is nothing to decide), and how it ended."""

    envelope: Envelope
    decoded: Decoded | None = None
    state: InboundEnvelope.State = State.DROPPED
    reason: str = ""

    @property
    def hash(self) -> bytes:
        return self.envelope.hash

    def drop(self, reason: str) -> None:
        self.decoded = None
        self.state = State.DROPPED
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Processed:
    """The outcome of a batch of envelopes."""

    replies: list[Reply] = field(default_factory=list)
    accepted: Accepted = field(default_factory=Accepted)
    needs_keys: bool = False  # some envelopes wait for the key of their topic


def process(items: Sequence[Item], *, sending: Sending, capacity: Buckets, now: datetime) -> Processed:
    """Process envelopes that were taken and opened, in the same transaction.

    ``capacity`` limits what this process keeps of those that nothing follows from.
    """
    replies = _register(items, now=now) + _answer_queries(items, now=now)
    accepted = _accept_requests(items, sending=sending, now=now)
    _close(items, _find_useless(items, accepted.stored, capacity, now=now), now=now)
    _log_batch(items)
    return Processed(replies, accepted, needs_keys=any(item.state is State.PENDING_KEY for item in items))


_TAKE = """
    WITH waiting AS (
        SELECT hash, pubsub_topic, content_topic, coalesce(payload, '') AS payload, received_at, timestamp_ns,
               sum(length(coalesce(payload, ''))) OVER ({order}, hash) AS bytes, {max_bytes} AS max_bytes,
               count(*) OVER () AS locked
        FROM ({rows}) AS locked
    )
    SELECT hash, pubsub_topic, content_topic, payload, received_at, locked FROM waiting
    WHERE bytes - length(payload) < max_bytes ORDER BY received_at, timestamp_ns, hash
"""
_ROWS = """
    SELECT * FROM waku_bridge_openenvelope
    WHERE {which} ORDER BY {order} LIMIT {limit} FOR UPDATE SKIP LOCKED
"""
_ARRIVAL = "received_at, timestamp_ns"
_REVERSED = "received_at DESC, timestamp_ns DESC"
WAITING: LiteralString = f"SELECT FROM waku_bridge_openenvelope WHERE state = '{State.RECEIVED}'"
_RECEIVED = f"""
    state = '{State.RECEIVED}' AND received_at >= %(nothing_before)s AND hash <> ALL (%(but)b::bytea[])
"""


def _rows(which: LiteralString, order: LiteralString, limit: LiteralString = "%(limit)s") -> LiteralString:
    return _ROWS.format(which=which, order=order, limit=limit)


# The smallest of the locked envelopes fill the bytes of a batch first, so that large ones delay no other.
_SIZE: LiteralString = "length(coalesce(payload, ''))"


def _take_in(order: LiteralString, which: LiteralString) -> LiteralString:
    return _TAKE.format(rows=_rows(which, order), order=f"ORDER BY {_SIZE}, {order}", max_bytes="%(max_bytes)s")


_OLDEST: LiteralString = _take_in(_ARRIVAL, _RECEIVED)
# A fifth of a batch, in rows and in bytes, holds the oldest envelopes: full batches have passed them over, and without
# it they would wait for ever. Four fifths hold the newest, so most senders are answered in time however many wait.
_FOUR_FIFTHS: LiteralString = _rows(_RECEIVED, _REVERSED, "%(limit)s - %(limit)s / 5")
_NOT_NEWEST: LiteralString = f"{_RECEIVED} AND hash <> ALL (ARRAY(SELECT hash FROM newest))"
_A_FIFTH: LiteralString = _rows(_NOT_NEWEST, _ARRIVAL, "%(limit)s / 5")
_NEWEST: LiteralString = _TAKE.format(
    rows=f"""
        WITH newest AS ({_FOUR_FIFTHS}), oldest AS ({_A_FIFTH})
        SELECT *, 0.8 AS share, now() - received_at AS rank FROM newest
        UNION ALL SELECT *, 0.2, received_at - now() FROM oldest
    """,
    order=f"PARTITION BY share ORDER BY {_SIZE}, rank",
    max_bytes="%(max_bytes)s * share",
)
# Without statistics, PostgreSQL may look for a state by its index, instead of for the keys. `<>` fits no index.
_CAN_BE_TAKEN: LiteralString = f"state <> '{State.PENDING_KEY}'"
_SUSPECTS: LiteralString = f"{_CAN_BE_TAKEN} AND hash = ANY (%(suspects)b::bytea[])"
_ONE: LiteralString = _take_in("hash", _SUSPECTS)
_POSTPONED: LiteralString = _take_in(_REVERSED, f"state = '{State.POSTPONED}' AND hash <> ALL (%(but)b::bytea[])")
_POSTPONE = f"""
    UPDATE waku_bridge_openenvelope SET state = '{State.POSTPONED}' WHERE hash = ANY (%b::bytea[])
"""
_RECALL = f"""
    UPDATE waku_bridge_openenvelope SET state = '{State.RECEIVED}'
    WHERE hash = ANY (%b::bytea[]) AND {_CAN_BE_TAKEN}
"""
_STILL_WAITING = f"""
    SELECT hash, {_CAN_BE_TAKEN} FROM waku_bridge_openenvelope
    WHERE hash = ANY (%b::bytea[])
"""


_FAILED: LiteralString = ending(
    f"hash = ANY (%(hashes)b::bytea[]) AND {_CAN_BE_TAKEN}",
    state=f"'{State.FAILED}'",
    reason="%(reason)s::text",
    fault_id="%(fault)s::bigint",
    payload="payload",
)
_FAIL: LiteralString = f"WITH {_FAILED} SELECT count(*) FROM ended"


def take(
    limit: int, nothing_before: datetime = LONG_AGO, *, but: Collection[bytes] = (), is_newest_first: bool = False
) -> Taken:
    """Lock up to ``limit`` envelopes that wait and that no other worker has locked, up to `MAX_BATCH_BYTES`.

    They are the oldest, or, with ``is_newest_first``, four fifths the newest and one fifth the oldest. They are
    returned in order of arrival.
    """
    return _take(_NEWEST if is_newest_first else _OLDEST, limit, but=list(but), nothing_before=nothing_before)


def take_one_of(suspects: Collection[bytes]) -> Taken:
    """Lock one of these envelopes, alone."""
    return _take(_ONE, 1, suspects=list(suspects))


def take_postponed(units: int, *, but: Collection[bytes] = ()) -> Taken:
    """Lock the newest of the postponed envelopes, as `take` does: as many as ``units`` may pay for."""
    return _take(_POSTPONED, units, max_bytes=units * BYTES_PER_UNIT, but=list(but))


def postpone(items: Sequence[Item]) -> None:
    """Mark taken envelopes as postponed."""
    if items:
        write(_POSTPONE, [[item.hash for item in items]])


def recall(envelope_hashes: Collection[bytes]) -> None:
    """Mark those of these envelopes as received that were postponed."""
    if envelope_hashes:
        write(_RECALL, [list(envelope_hashes)])


def still_waiting(envelope_hashes: Collection[bytes]) -> dict[bytes, bool]:
    """Return which of these envelopes are undecided, and whether they can be taken: without its key none can."""
    return dict(fetch(_STILL_WAITING, [list(envelope_hashes)]))


def _take(sql: LiteralString, limit: int, **values: object) -> Taken:
    rows = fetch(sql, {"limit": limit, "max_bytes": MAX_BATCH_BYTES} | values)
    locked = max((locked for *_, locked in rows), default=0)  # the same in every row
    envelopes = [Envelope._make(columns) for *columns, _ in rows]
    return Taken(envelopes, is_more_left=locked == limit or locked > len(envelopes))


def give_up(envelope_hashes: Collection[bytes], *, now: datetime) -> None:
    """Mark envelopes as failed because each of them kills the process that works on it. Their payloads are kept."""
    if envelope_hashes:
        log.error("envelopes_given_up", envelope_hashes=[each.hex() for each in envelope_hashes])
        _fail(envelope_hashes, PROCESS_DIED, faults.note(PROCESS_DIED, count=len(envelope_hashes), now=now), now=now)
        count(ENVELOPES_PROCESSED, {("unknown", "failed"): len(envelope_hashes)})


def quarantine(envelope: Envelope, error: Exception, *, now: datetime) -> None:
    """Mark an envelope as failed. Its payload is kept, so that it can be processed again."""
    # The type and the location only: the text of an exception may quote the data that caused it.
    name, frame = faults.name_of(error), faults.frame_of(error)
    location = f"{faults.location_of(frame)}, line {frame.lineno}" if frame else ""
    log.error("envelope_failed", envelope_hash=envelope.hash.hex(), error=name, location=location)
    _fail([envelope.hash], type(error).__name__, faults.note(name, frame, now=now), now=now)
    count(ENVELOPES_PROCESSED, [("unknown", "failed")])


def _fail(envelope_hashes: Collection[bytes], reason: str, fault_id: int, *, now: datetime) -> None:
    fetch(_FAIL, {"hashes": list(envelope_hashes), "reason": reason, "fault": fault_id, "now": now})


def open_all(envelopes: Sequence[Envelope], *, now: datetime) -> list[Item]:
    """Decode envelopes and return an item for each, except for those that the codec fails on: these are quarantined.

    An envelope waits in its own state where a key that is still to be derived may open it.
    """
    own_topics = identities_by_topic()
    others = {envelope.content_topic for envelope in envelopes if envelope.content_topic not in own_topics}
    topic_keys = query_topics.load_keys(others) if others else query_topics.Keys({}, set())
    return list(_decode_each(envelopes, topic_keys, now=now))


def _decode_each(envelopes: Iterable[Envelope], topic_keys: query_topics.Keys, *, now: datetime) -> Iterator[Item]:
    own_topics = identities_by_topic()
    for envelope in envelopes:
        topic = envelope.content_topic
        item = Item(envelope)
        keys: list[DecryptionKey] = [*own_topics.get(topic, ()), *topic_keys.known.get(topic, ())]
        try:
            item.decoded = decode(envelope.payload, keys, server_identity(), accepted=ACCEPTED)
        except CodecError as error:
            item.reason = error.reason
            if isinstance(error, NotDecryptable) and topic in topic_keys.missing:
                item.state = State.PENDING_KEY
                item.reason = ""
        except Exception as error:  # noqa: BLE001 - a fault of the codec must not stop the other envelopes
            quarantine(envelope, error, now=now)
            continue
        else:
            item.state = State.PROCESSED
            _drop_unusable(item, item.decoded.body)
        yield item


def _log_batch(items: Sequence[Item]) -> None:
    """Count the envelopes that ended, and log one line per batch.

    The line is at debug level while all were accepted, and at info level when something was dropped or refused.
    """
    closed = [item for item in items if item.state is not State.PENDING_KEY]
    if not closed:
        return
    count(ENVELOPES_PROCESSED, ((_type_of(item), item.reason or "accepted") for item in closed))
    decided_at = clock.now()
    waited = {item.hash: (decided_at - item.envelope.received_at).total_seconds() for item in closed}
    observe(INBOX_WAIT_SECONDS, waited.values(), of=waited)
    note((item.hash, _facts(item, waited[item.hash])) for item in closed)
    outcomes = Counter(item.reason or "accepted" for item in closed)
    (log.debug if outcomes.keys() == {"accepted"} else log.info)("envelopes_processed", **outcomes)


def _facts(item: Item, waited_seconds: float) -> dict[str, object]:
    """Return the attributes of the decision in the trace of a message."""
    outcome = item.reason or "accepted"
    return {"message_type": _type_of(item), "outcome": outcome, "wait_ms": round(waited_seconds * 1000)}


def _drop_unusable(item: Item, body: Body) -> None:
    if isinstance(body, PushRequest):
        if not body.message_id:
            item.drop("no_message_id")
        # PostgreSQL's text cannot hold NUL, and no installation id has one.
        elif any("\0" in notification.installation_id for notification in body.notifications):
            item.drop("malformed_body")


def _register(items: Iterable[Item], *, now: datetime) -> list[Reply]:
    registrations = [
        (i, i.decoded, i.decoded.body) for i in items if i.decoded and isinstance(i.decoded.body, Registration)
    ]
    submissions = [
        registering.Submission(
            key_hash(decoded.author),
            body.content,
            body.registration,
            body.grant_verified,
            decoded.recipient or server_identity().pub33,
        )
        for _, decoded, body in registrations
    ]
    if not submissions:
        return []
    outcomes = registering.register(
        submissions, bridge=BRIDGE, gateway=settings.STATUS_GATEWAY, check_address=_check_address, now=now
    )
    accepted = {s.public_key_hash for s, outcome in zip(submissions, outcomes, strict=True) if outcome.is_accepted}
    query_topics.listen_to(accepted, now=now)
    acceptance.withdraw({route_id for each in outcomes for route_id in each.removed_route_ids}, now=now)
    replies: list[tuple[Reply, registering.Outcome]] = []
    for (item, decoded, body), outcome in zip(registrations, outcomes, strict=True):
        item.reason = "" if outcome.is_accepted else str(outcome.decision)
        if outcome.decision is Refusal.TOO_MANY_CHANGES:  # anybody may repeat a recorded message without end
            continue
        replies.append((_reply(item, decoded, _registration_response(body, outcome.decision)), outcome))
    return list(_within_limits(replies, now=now))


def _within_limits(replies: Sequence[tuple[Reply, registering.Outcome]], *, now: datetime) -> Iterator[Reply]:
    """Yield the answers to accepted registrations, and of the others those that are within the limits of errors.

    Keys cost nothing, so an error goes to a key with a proven address, or is one of the few that all others get.
    """
    refused = {key_hash(reply.recipient) for reply, outcome in replies if not outcome.is_accepted}
    proven = find_proven_keys(refused)
    for reply, outcome in replies:
        if outcome.is_accepted or _take_error(key_hash(reply.recipient), proven, now=now):
            yield reply
        elif own_buckets().take([(ERROR, ERRORS)], now=now):
            yield replace(reply, is_discarded=True, needs_confirmation=False)


def _take_error(public_key_hash: bytes, proven: Collection[bytes], *, now: datetime) -> bool:
    own = ERROR + public_key_hash[:16], ERRORS_OF_KEY
    return public_key_hash in proven and own_buckets().take([own], now=now)


def _check_address(message: RegistrationMessage) -> Refusal | None:
    """Refuse a token that Apple or Firebase cannot have made, unless the operator has switched this check off."""
    return (check_device_token if settings.CHECK_DEVICE_TOKENS else check_token_type)(message)


def _registration_response(body: Registration, decision: Acceptance | Refusal) -> RegistrationResponse:
    if isinstance(decision, Refusal):
        return RegistrationResponse(body.request_id, success=False, error=REGISTRATION_ERRORS[decision])
    return RegistrationResponse(body.request_id, success=True)


def _answer_queries(items: Iterable[Item], *, now: datetime) -> list[Reply]:
    """Return the answers to queries.

    A query that finds nothing gets no answer: another server may have the registration, and the sender waits for it.
    """
    queries = [(i, i.decoded, i.decoded.body) for i in items if i.decoded and isinstance(i.decoded.body, Query)]
    if not queries:
        return []
    asked = [
        Asked(d.author, body.public_key_hashes, len(i.envelope.payload), i.envelope.content_topic)
        for i, d, body in queries
    ]
    verdicts = Verdicts(_query_limits(QUERIES_PER_KEY_PER_MINUTE), asked, own_buckets(), at=now)
    wanted = {key for keys in verdicts.wanted if not isinstance(keys, str) for key in keys}
    own_keys = [identity.pub33 for identity in server_identities()]
    found = lookup.find(wanted, server_public_keys=own_keys) if wanted else {}
    replies: list[Reply] = []
    for (item, decoded, _), query, keys in zip(queries, asked, verdicts.wanted, strict=True):
        infos = [] if isinstance(keys, str) else [info for key in keys for info in found.get(key, ())]
        if answers := tuple(verdicts.fitting(query, infos)):
            item.reason = ""  # an earlier attempt at this batch may have set it
            replies += _answers(item, decoded, answers)
        else:
            item.reason = keys if isinstance(keys, str) else "nothing_found"
    transaction.on_commit(verdicts.take)
    return replies


@cache
def _query_limits(per_minute: int) -> Limits:
    return Limits(per_minute)


def _answers(item: Item, decoded: Decoded, infos: Sequence[QueryInfo]) -> Iterator[Reply]:
    """Yield an answer for each identity of ours with a registration: clients verify grants against its key.

    Stores are not asked for it: anybody can cause any number of answers, and clients ask again.
    """
    for number, identity in enumerate(server_identities()):
        own = tuple(replace(i, server_public_key=b"") for i in infos if i.server_public_key == identity.pub33)
        if own:
            body = QueryResponse(decoded.message_id, success=True, info=own)
            answer = replace(_reply(item, decoded, body), needs_confirmation=False)
            yield replace(answer, sender=identity.pub33, first_part=number * MAX_PARTS)


def _reply(item: Item, decoded: Decoded, body: RegistrationResponse | QueryResponse) -> Reply:
    return Reply(item.hash, item.envelope.pubsub_topic, decoded.author, body, decoded.recipient)


def _accept_requests(items: Sequence[Item], *, sending: Sending, now: datetime) -> Accepted:
    batch = [
        acceptance.Incoming(
            request_key=item.decoded.message_id,
            source_key=item.hash,
            reply_address=return_address(
                item.decoded.author, item.envelope.pubsub_topic, sender=item.decoded.recipient
            ),
            sender=item.decoded.author,
            request=item.decoded.body,
            arrived_at=item.envelope.received_at,
        )
        for item in items
        if item.decoded and isinstance(item.decoded.body, PushRequest)
    ]
    accepted = acceptance.accept(BRIDGE, batch, sending=sending, now=now) if batch else Accepted()
    for item in items:
        if item.hash in accepted.replayed:
            item.state, item.reason = State.DROPPED, "replayed"
    return accepted


class Useless(NamedTuple):
    """Hashes of envelopes whose rows are not kept, and of those among them whose hashes are not kept either."""

    rows: set[bytes]
    hashes: list[bytes]


def _find_useless(
    items: Iterable[Item], stored_requests: Collection[bytes], capacity: Buckets, *, now: datetime
) -> Useless:
    """Return what is not kept of envelopes that are dropped, and of requests that repeat one or notify nobody."""
    at = now.timestamp()
    useless = [item for item in items if _is_useless(item, stored_requests)]
    left_out = [i for i in useless if not capacity.take(Charge(i.reason, per_minute(ROWS_PER_MINUTE)), now=at)]
    hashes = Charge(None, (Limit(HASHES_PER_HOUR, 3600.0),))
    unreadable = [item.hash for item in left_out if item.decoded is None and not capacity.take(hashes, now=at)]
    capacity.keep()
    return Useless({item.hash for item in left_out}, unreadable)


def _is_useless(item: Item, stored_requests: Collection[bytes]) -> bool:
    is_request = item.decoded is not None and isinstance(item.decoded.body, PushRequest)
    return item.state is State.DROPPED or (is_request and item.hash not in stored_requests)


def _type_of(item: Item) -> str:
    return MESSAGE_TYPES[type(item.decoded.body)].name.lower() if item.decoded else "unknown"


_HASHES: LiteralString = "%(hashes)b::bytea[]"
_of = partial(array_value, _HASHES, "envelope.hash")
_IS_DECIDED: LiteralString = f"envelope.hash = ANY ({_HASHES}) AND {_of('states', 'text')} <> '{State.PENDING_KEY}'"
_ENDED: LiteralString = ending(
    _IS_DECIDED,
    kept_if=_of("kept", "boolean"),
    state=_of("states", "text"),
    reason=_of("reasons", "text"),
    message_type=_of("types", "smallint"),
    message_id=_of("ids", "bytea"),
)
_CLOSE = f"""
    WITH without_key AS (
        UPDATE waku_bridge_openenvelope AS envelope SET state = '{State.PENDING_KEY}'
        WHERE envelope.hash = ANY ({_HASHES}) AND {_of("states", "text")} = '{State.PENDING_KEY}'
    ), {_ENDED} SELECT count(*) FROM ended
"""
_FORGET: LiteralString = "DELETE FROM waku_bridge_envelopehash WHERE hash = ANY (%b::bytea[])"


def _close(items: Sequence[Item], useless: Useless, *, now: datetime) -> None:
    """Write how every envelope ended, in one statement, and drop the payloads that are not needed any more."""
    rows = [
        (
            *(item.hash, str(item.state), item.reason),
            int(MESSAGE_TYPES[type(item.decoded.body)]) if item.decoded else None,
            item.decoded.message_id if item.decoded else None,
            item.hash not in useless.rows,
        )
        for item in items
    ]
    columns = "hashes", "states", "reasons", "types", "ids", "kept"
    write_rows(_CLOSE, columns, rows, now=now)
    if useless.hashes:
        write(_FORGET, [useless.hashes])
