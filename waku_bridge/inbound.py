"""Processing envelopes: decode them, have them decided, and record every consequence in one commit.

Safe to run twice, and with several workers: an envelope is processed by whoever locks it first. One that cannot be
decoded is dropped with its reason; one that trips over a fault of ours is set aside and does not stop its neighbours.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog
from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from measuring.batches import count, observe
from notifications import acceptance
from notifications.messages import PushRequest
from registrations import intake, lookup
from registrations.pairs import InstallationKey
from registrations.rules import Acceptance, Refusal
from waku_bridge import outbound, query_topics, unkeyed
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError, NotDecryptable
from waku_bridge.codec.keys import DecryptionKey, key_hash
from waku_bridge.identity import own_content_topics, server_identity
from waku_bridge.messages import (
    Body,
    Decoded,
    MessageType,
    PushResponse,
    Query,
    QueryResponse,
    Registration,
    RegistrationError,
    RegistrationResponse,
)
from waku_bridge.metrics import ENVELOPES_PROCESSED, INBOX_WAIT_SECONDS
from waku_bridge.models import InboundEnvelope
from waku_bridge.outbound import Reply

log = structlog.get_logger(__name__)
State = InboundEnvelope.State

# Another batch may insert the same installation, request or push at the same moment. It is committed by the time we
# fail on it, so the next try sees it.
MAX_TRIES = 3
CONFLICTS = {"40001", "40P01"}  # SQLSTATE: serialization failure, deadlock
TOO_LARGE_FOR_IT = "54"  # SQLSTATE class "program limit exceeded", which Django counts as OperationalError

# What a refused registration is told (71/STATUS-PUSH-NOTIFICATION-SERVER, PushNotificationRegistrationResponse).
REGISTRATION_ERRORS = {
    Refusal.MALFORMED: RegistrationError.MALFORMED_MESSAGE,
    Refusal.STALE_VERSION: RegistrationError.VERSION_MISMATCH,
    Refusal.UNSUPPORTED_TOKEN_TYPE: RegistrationError.UNSUPPORTED_TOKEN_TYPE,
}
MESSAGE_TYPES: dict[type[Body], MessageType] = {
    Registration: MessageType.REGISTRATION,
    Query: MessageType.QUERY,
    PushRequest: MessageType.REQUEST,
}


@dataclass(frozen=True, slots=True)
class Processed:
    """What is to be done after the commit, as ids."""

    reply_ids: list[int] = field(default_factory=list)
    notification_ids: list[int] = field(default_factory=list)
    waiting_request_ids: list[int] = field(default_factory=list)
    needs_keys: bool = False  # some envelopes stepped aside, see `unkeyed`


@dataclass(slots=True)
class _Item:
    """One envelope of a batch: what it says (None when it is dropped), and how it ended."""

    hash: bytes
    decoded: Decoded | None
    reason: str = ""

    @property
    def state(self) -> InboundEnvelope.State:
        return State.PROCESSED if self.decoded else State.DROPPED

    def drop(self, reason: str) -> None:
        self.decoded, self.reason = None, reason


def process(envelope_hashes: Sequence[bytes], *, now: datetime) -> Processed:
    """Process those envelopes that still wait for it.

    Raises OperationalError or InterfaceError while the database is away; nothing is lost then, and all can be repeated.
    """
    items, unkeyed_hashes = _decode_all(_load(envelope_hashes), now=now)
    unkeyed.step_aside(unkeyed_hashes)
    return replace(_process(items, now=now), needs_keys=bool(unkeyed_hashes))


def _process(items: Sequence[_Item], *, now: datetime) -> Processed:
    """A batch that trips is halved until the envelope that it trips over is alone."""
    if not items:
        return Processed()
    try:
        return _decide_despite_conflicts(items, now=now)
    except Exception as error:
        if _is_about_the_database(error):
            raise
        if len(items) == 1:
            _set_aside(items[0].hash, error, now=now)
            return Processed()
        log.warning("batch_split", error=type(error).__name__, size=len(items))
    middle = len(items) // 2
    return _merge(_process(half, now=now) for half in (items[:middle], items[middle:]))


def _decide_despite_conflicts(items: Sequence[_Item], *, now: datetime) -> Processed:
    for _ in range(MAX_TRIES - 1):
        try:
            return _decide_and_record(items, now=now)
        except (IntegrityError, OperationalError) as error:
            if not isinstance(error, IntegrityError) and _sqlstate(error) not in CONFLICTS:
                raise
            log.info("batch_collided", error=type(error).__name__, size=len(items))
    return _decide_and_record(items, now=now)


def _is_about_the_database(error: Exception) -> bool:
    """Rather than about what it was asked to store: then the envelopes are not to blame."""
    return isinstance(error, OperationalError | InterfaceError) and not _sqlstate(error).startswith(TOO_LARGE_FOR_IT)


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def _set_aside(envelope_hash: bytes, error: Exception, *, now: datetime) -> None:
    # The type only: the text of an exception may quote the data that caused it.
    log.error("envelope_failed", envelope_hash=envelope_hash.hex(), error=type(error).__name__)
    InboundEnvelope.objects.filter(hash=envelope_hash, state=State.RECEIVED).update(
        state=State.FAILED, reason=type(error).__name__, processed_at=now
    )
    count(ENVELOPES_PROCESSED, [("unknown", "failed")])


def _merge(parts: Iterable[Processed]) -> Processed:
    merged = Processed()
    for part in parts:
        merged.reply_ids.extend(part.reply_ids)
        merged.notification_ids.extend(part.notification_ids)
        merged.waiting_request_ids.extend(part.waiting_request_ids)
    return merged


def _load(envelope_hashes: Sequence[bytes]) -> list[tuple[bytes, str, bytes]]:
    """Hash, content topic and payload, in the order of arrival."""
    waiting = InboundEnvelope.objects.filter(hash__in=envelope_hashes, state=State.RECEIVED)
    rows = waiting.order_by("received_at", "timestamp_ns").values_list("hash", "content_topic", "payload")
    return [(bytes(envelope_hash), topic, bytes(payload or b"")) for envelope_hash, topic, payload in rows]


def _decode_all(envelopes: Sequence[tuple[bytes, str, bytes]], *, now: datetime) -> tuple[list[_Item], list[bytes]]:
    """What the envelopes say, and the hashes of those that a key still to be derived may open."""
    identity, own_topics = server_identity(), own_content_topics()
    topic_keys = query_topics.load_keys({topic for _, topic, _ in envelopes})
    items, unkeyed_hashes = [], []
    for envelope_hash, topic, payload in envelopes:
        keys: list[DecryptionKey] = [*([identity] if topic in own_topics else []), *topic_keys.known.get(topic, ())]
        item = _Item(envelope_hash, None)
        try:
            item.decoded = decode(payload, keys, identity)
        except CodecError as error:
            if isinstance(error, NotDecryptable) and topic in topic_keys.missing:
                unkeyed_hashes.append(envelope_hash)
                continue
            item.reason = error.reason
        except Exception as error:  # noqa: BLE001 - a fault of the codec concerns this envelope alone
            _set_aside(envelope_hash, error, now=now)
            continue
        else:
            _drop_unusable(item, item.decoded.body)
        items.append(item)
    return items, unkeyed_hashes


def _drop_unusable(item: _Item, body: Body) -> None:
    if type(body) not in MESSAGE_TYPES:
        item.drop("not_for_servers")
    elif isinstance(body, PushRequest):
        if not body.message_id:
            item.drop("no_message_id")
        # PostgreSQL's text cannot hold NUL, and no installation id has one.
        elif any("\0" in notification.installation_id for notification in body.notifications):
            item.drop("malformed_body")


def _decide_and_record(items: Sequence[_Item], *, now: datetime) -> Processed:
    with transaction.atomic(durable=True):
        items = _lock(items)
        replies = _register(items, now=now) + _answer_queries(items)
        accepted = _accept_requests(items, now=now)
        replies += [Reply(a.envelope_hash, a.reply_to, PushResponse(a.message_id, a.reports)) for a in accepted.answers]
        reply_ids = outbound.record(replies, now=now)
        received = _close(items, now=now)
        count(ENVELOPES_PROCESSED, ((_type_of(item), item.reason or "accepted") for item in items))
        decided_at = timezone.now()
        observe(INBOX_WAIT_SECONDS, ((decided_at - at).total_seconds() for at in received))
    outcomes = Counter(item.reason or "accepted" for item in items)
    # A line per batch is noise while all is well, and at once when something was dropped or refused.
    (log.debug if outcomes.keys() == {"accepted"} else log.info)("envelopes_processed", **outcomes)
    return Processed(reply_ids, accepted.notification_ids, accepted.waiting_request_ids)


def _lock(items: Sequence[_Item]) -> list[_Item]:
    """Those that nobody else has processed or is processing."""
    waiting = InboundEnvelope.objects.select_for_update(skip_locked=True).filter(
        hash__in=[item.hash for item in items], state=State.RECEIVED
    )
    locked = {bytes(envelope_hash) for envelope_hash in waiting.order_by("hash").values_list("hash", flat=True)}
    return [item for item in items if item.hash in locked]


def _register(items: Iterable[_Item], *, now: datetime) -> list[Reply]:
    registrations = [
        (i, i.decoded, i.decoded.body) for i in items if i.decoded and isinstance(i.decoded.body, Registration)
    ]
    submissions = [
        intake.Submission(key_hash(decoded.author), body.content, body.registration, body.grant_verified)
        for _, decoded, body in registrations
    ]
    if not submissions:
        return []
    outcomes = intake.register(submissions, server_public_key=server_identity().pub33, now=now)
    accepted = {s.public_key_hash for s, outcome in zip(submissions, outcomes, strict=True) if outcome.is_accepted}
    query_topics.listen_to(accepted, now=now)
    acceptance.withdraw(_unregistered(submissions, outcomes), now=now)
    replies = []
    for (item, decoded, body), outcome in zip(registrations, outcomes, strict=True):
        item.reason = "" if outcome.is_accepted else str(outcome.decision)
        replies.append(Reply(item.hash, decoded.author, _registration_response(body, outcome.decision)))
    return replies


def _unregistered(submissions: Iterable[intake.Submission], outcomes: Iterable[intake.Outcome]) -> set[InstallationKey]:
    return {
        (submission.public_key_hash, submission.message.installation_id)
        for submission, outcome in zip(submissions, outcomes, strict=True)
        if submission.message and outcome.decision is Acceptance.UNREGISTER
    }


def _registration_response(body: Registration, decision: Acceptance | Refusal) -> RegistrationResponse:
    if isinstance(decision, Refusal):
        return RegistrationResponse(body.request_id, success=False, error=REGISTRATION_ERRORS[decision])
    return RegistrationResponse(body.request_id, success=True)


def _answer_queries(items: Iterable[_Item]) -> list[Reply]:
    """A query that finds nothing gets no answer: another server may know, and the sender waits for it."""
    queries = [(i, i.decoded, i.decoded.body) for i in items if i.decoded and isinstance(i.decoded.body, Query)]
    wanted = {public_key_hash for _, _, body in queries for public_key_hash in body.public_key_hashes}
    found = lookup.find(wanted, server_public_key=server_identity().pub33) if wanted else {}
    replies = []
    for item, decoded, body in queries:
        info = [i for public_key_hash in dict.fromkeys(body.public_key_hashes) for i in found.get(public_key_hash, ())]
        if info:
            item.reason = ""  # an earlier try of this batch may have found nothing yet
            response = QueryResponse(decoded.message_id, success=True, info=tuple(info))
            replies.append(Reply(item.hash, decoded.author, response))
        else:
            item.reason = "nothing_found"
    return replies


def _accept_requests(items: Iterable[_Item], *, now: datetime) -> acceptance.Accepted:
    batch = [
        acceptance.Incoming(item.decoded.message_id, item.hash, item.decoded.author, item.decoded.body)
        for item in items
        if item.decoded and isinstance(item.decoded.body, PushRequest)
    ]
    return acceptance.accept(batch, now=now) if batch else acceptance.Accepted([], [], [])


def _type_of(item: _Item) -> str:
    return MESSAGE_TYPES[type(item.decoded.body)].name.lower() if item.decoded else "unknown"


def _close(items: Sequence[_Item], *, now: datetime) -> list[datetime]:
    """Every envelope with how it ended, in one statement, and without its payload. Returns when each was received."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE waku_bridge_inboundenvelope AS envelope
            SET state = item.state, reason = item.reason, message_type = item.message_type,
                message_id = item.message_id, processed_at = %s, payload = NULL
            FROM unnest(%s::bytea[], %s::text[], %s::text[], %s::smallint[], %s::bytea[])
                AS item (hash, state, reason, message_type, message_id)
            WHERE envelope.hash = item.hash
            RETURNING received_at
            """,
            [
                now,
                [item.hash for item in items],
                [str(item.state) for item in items],
                [item.reason for item in items],
                [MESSAGE_TYPES[type(item.decoded.body)] if item.decoded else None for item in items],
                [item.decoded.message_id if item.decoded else None for item in items],
            ],
        )
        return [received_at for (received_at,) in cursor.fetchall()]
