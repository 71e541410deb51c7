"""Processing of envelopes: it decodes them, has them decided, and records every consequence in the batch's one commit.

It is safe to run twice, and in several workers: the worker that locks an envelope first processes it. An envelope that
cannot be decoded is dropped with its reason. One that fails because of a fault of ours is quarantined, and the other
envelopes of the batch go on.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache

import structlog
from django.conf import settings

from kit.buckets.bucket import BucketLimits, Buckets, Charge, Limit, per_minute
from kit.buckets.shared import own_buckets
from kit.db.clock import clock
from kit.telemetry import count, note, observe
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Accepted
from notifications.messages import PushRequest
from notifications.queues.capacity import ConcurrencyLimits
from registrations import lookup, registering
from registrations.lookup import find_proven_keys
from registrations.messages import QueryInfo
from registrations.quotas import CHANGES
from registrations.rules import Acceptance, Refusal
from waku_bridge import query_topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError, NotDecryptable
from waku_bridge.codec.keys import DecryptionKey, key_hash
from waku_bridge.inbox import faults, inbox
from waku_bridge.inbox.inbox import MESSAGE_TYPES, Item, State
from waku_bridge.inbox.queries import Asked, Limits
from waku_bridge.messages import (
    BRIDGE,
    Body,
    Decoded,
    Query,
    QueryResponse,
    Registration,
    RegistrationError,
    RegistrationResponse,
)
from waku_bridge.metrics import ENVELOPES_PROCESSED, INBOX_WAIT_SECONDS
from waku_bridge.outbound.outbox import MAX_PARTS, Reply, return_address
from waku_bridge.query_topics import identities_by_topic, server_identities, server_identity

log = structlog.get_logger(__name__)

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
ACCEPTED = frozenset(MESSAGE_TYPES.values())


@dataclass(frozen=True, slots=True)
class Processed:
    """The outcome of a batch of envelopes."""

    replies: list[Reply] = field(default_factory=list)
    accepted: Accepted = field(default_factory=Accepted)
    needs_keys: bool = False  # some envelopes wait for the key of their topic


def process(items: Sequence[Item], *, limits: ConcurrencyLimits, capacity: Buckets, now: datetime) -> Processed:
    """Process envelopes that were taken and opened, in the same transaction.

    ``capacity`` limits what this process keeps of those that nothing follows from.
    """
    replies = _register(items, now=now) + _answer_queries(items, now=now)
    accepted = _accept_requests(items, limits=limits, now=now)
    _end(items, accepted.stored, capacity, now=now)
    _log_batch(items)
    return Processed(replies, accepted, needs_keys=any(item.state is State.PENDING_KEY for item in items))


def open_all(items: Sequence[Item], *, now: datetime) -> list[Item]:
    """Decode envelopes and return them, except for those that the codec fails on: these are quarantined.

    An envelope waits in its own state where a key that is still to be derived may open it.
    """
    own_topics = identities_by_topic()
    others = {item.content_topic for item in items if item.content_topic not in own_topics}
    topic_keys = query_topics.load_keys(others) if others else {}
    return [item for item in items if _is_opened(item, own_topics, topic_keys, now=now)]


def _is_opened(
    item: Item,
    own_topics: Mapping[str, Sequence[DecryptionKey]],
    topic_keys: Mapping[str, Sequence[bytes | None]],
    *,
    now: datetime,
) -> bool:
    on_topic = topic_keys.get(item.content_topic, ())
    keys = [*own_topics.get(item.content_topic, ()), *filter(None, on_topic)]
    try:
        item.decoded = decode(item.payload, keys, server_identity(), accepted=ACCEPTED)
    except CodecError as error:
        item.reason = error.reason
        if isinstance(error, NotDecryptable) and None in on_topic:
            item.state, item.reason = State.PENDING_KEY, ""
    except Exception as error:  # noqa: BLE001 - a fault of the codec must not stop the other envelopes
        faults.quarantine(item.hash, error, now=now)
        return False
    else:
        item.state = State.PROCESSED
        _drop_unusable(item, item.decoded.body)
    return True


def _log_batch(items: Sequence[Item]) -> None:
    """Count the envelopes that ended, and log one line per batch.

    The line is at debug level while all were accepted, and at info level when something was dropped or refused.
    """
    closed = [item for item in items if item.state is not State.PENDING_KEY]
    if not closed:
        return
    count(ENVELOPES_PROCESSED, ((_type_of(item), item.reason or "accepted") for item in closed))
    decided_at = clock.now()
    waited = {item.hash: (decided_at - item.received_at).total_seconds() for item in closed}
    observe(INBOX_WAIT_SECONDS, waited.values())
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
    outcomes = registering.register(submissions, bridge=BRIDGE, gateway=settings.STATUS_GATEWAY, now=now)
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
    asked = [Asked(d.author, body.public_key_hashes, len(i.payload), i.content_topic) for i, d, body in queries]
    limits = query_limits()
    refusals = [limits.refusal(query, own_buckets(), at=now) for query in asked]
    allowed = [() if why else query.public_key_hashes for query, why in zip(asked, refusals, strict=True)]
    wanted = {key for keys in allowed for key in keys}
    own_keys = [identity.pub33 for identity in server_identities()]
    found = lookup.find(wanted, server_public_keys=own_keys) if wanted else {}
    replies: list[Reply] = []
    for (item, decoded, _), query, keys, why in zip(queries, asked, allowed, refusals, strict=True):
        infos = [info for key in dict.fromkeys(keys) for info in found.get(key, ())]
        if answers := tuple(limits.fitting(query, infos)):
            item.reason = ""  # an earlier attempt at this batch may have set it
            replies += _answers(item, decoded, answers)
        else:
            item.reason = why or "nothing_found"
    return replies


@cache
def query_limits() -> Limits:
    """Return the limits of queries in this process."""
    return Limits(QUERIES_PER_KEY_PER_MINUTE)


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
    return Reply(item.hash, item.pubsub_topic, decoded.author, body, decoded.recipient)


def _accept_requests(items: Sequence[Item], *, limits: ConcurrencyLimits, now: datetime) -> Accepted:
    batch = [
        acceptance.Incoming(
            request_key=item.decoded.message_id,
            source_key=item.hash,
            reply_address=return_address(item.decoded.author, item.pubsub_topic, sender=item.decoded.recipient),
            sender=item.decoded.author,
            request=item.decoded.body,
            arrived_at=item.received_at,
        )
        for item in items
        if item.decoded and isinstance(item.decoded.body, PushRequest)
    ]
    accepted = acceptance.accept(BRIDGE, batch, limits=limits, now=now) if batch else Accepted()
    for item in items:
        if item.hash in accepted.replayed:
            item.state, item.reason = State.DROPPED, "replayed"
    return accepted


def _end(items: Sequence[Item], stored_requests: Collection[bytes], capacity: Buckets, *, now: datetime) -> None:
    """End the envelopes. Little is kept of those that are dropped, and of requests that repeat one or notify nobody."""
    at = now.timestamp()
    useless = [item for item in items if _is_useless(item, stored_requests)]
    left_out = [i for i in useless if not capacity.take(Charge(i.reason, per_minute(ROWS_PER_MINUTE)), now=at)]
    hashes = Charge(None, (Limit(HASHES_PER_HOUR, 3600.0),))
    unreadable = [item.hash for item in left_out if item.decoded is None and not capacity.take(hashes, now=at)]
    capacity.keep()
    for item in left_out:
        item.is_kept = False
    inbox.end(items, now=now)
    inbox.forget(unreadable)


def _is_useless(item: Item, stored_requests: Collection[bytes]) -> bool:
    is_request = item.decoded is not None and isinstance(item.decoded.body, PushRequest)
    return item.state is State.DROPPED or (is_request and item.hash not in stored_requests)


def _type_of(item: Item) -> str:
    return item.type.name.lower() if item.type else "unknown"
