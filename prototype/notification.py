"""A notification from its acceptance to its report: one value, which carries its route, its queue, its claim and result.

accept ──INSERT, claimed──▶ POST ──result──▶ record ──┬── done: history, its request counts it
  │          ▲                                        └── again: due later
  └─ offered │
             └── take: due again, or its worker died
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, LiteralString

from django.conf import settings

from kit.buckets.shared import own_buckets
from kit.db.statements import fetch, fetch_each, table, write
from kit.metrics.batches import count
from notifications import metrics
from notifications.acceptance.storing import digest_of
from notifications.messages import (
    Answer,
    ChannelKey,
    NotificationType,
    Push,
    PushNotification,
    PushRequest,
    QueueKey,
    Report,
    ReportError,
    Result,
    channel_key,
)
from notifications.models import RequestDigest
from notifications.queues import queues
from notifications.queues.claim import NOTED_FOR, open_address
from notifications.queues.concurrency import ConcurrencyLimits, Slot
from notifications.queues.queues import Queues
from notifications.rules.deadlines import expires_at, reply_due_at
from notifications.rules.policy import Recipient, Verdict, evaluate
from prototype.work import Table, offer
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.models import Registration, Route

DEDUP_WINDOW = timedelta(hours=24)
SOON = timedelta(seconds=5)
NOTIFICATIONS = Table(
    name="proto_notification",
    history="proto_notification_history",
    groups="queue_id",
    kept="id, request_id, position, public_key_hash, installation_id, type, route_id, queue_id, dedup_key, created_at, "
    "expires_at",
    ends=(("attempt_count", "smallint"), ("state", "text"), ("finished_at", "timestamptz")),
)
REQUESTS = Table(
    name="proto_request",
    history="proto_request_history",
    kept="id, bridge, request_key, source_key, sender_digest, message_id, received_at",
    ends=(("reports", "bytea"), ("answered_at", "timestamptz")),
)


@dataclass(slots=True)
class Route_:
    """The address of an installation, as far as a push needs it."""

    id: int
    generation: int
    token_type: int
    app_topic: str
    address_encrypted: bytes = field(repr=False)
    gateway: str
    digest: bytes
    is_noted: bool
    is_proven: bool
    state: str = "active"

    @property
    def channel(self) -> ChannelKey:
        return channel_key(self.token_type, self.app_topic)


@dataclass(slots=True)
class Notification:
    """One push to one installation. ``result`` is that of the attempt that is under way since ``claimed_at``."""

    request_id: int
    position: int
    asked: PushNotification
    route: Route_ | None = None
    verdict: Verdict = Verdict.DELIVER
    id: int = 0
    dedup_key: bytes = b""
    queue: QueueKey | None = None
    queue_id: int = 0
    slot: Slot | None = None
    address: bytes | None = field(default=None, repr=False)
    due_at: datetime | None = None
    claimed_at: datetime | None = None
    attempt_count: int = 0
    ambiguous_count: int = 0
    is_payload_dropped: bool = False
    is_probe: bool = False
    expires_at: datetime | None = None
    unsent_since: datetime | None = None
    source_key: bytes = b""
    result: Result | None = None

    @property
    def error(self) -> ReportError | None:
        """Return what its sender is told at once, or None while that depends on an attempt."""
        return self.verdict.error

    @property
    def push(self) -> Push:
        """Return it as its gateway needs it."""
        return Push(
            self.id,
            self.attempt_count,
            self.route.channel,
            self.address or b"",
            self.asked.type,
            self.asked.public_key_hash,
            self.asked.chat_id,
            self.asked.message,
            self.dedup_key[:16].hex(),
            is_payload_dropped=self.is_payload_dropped,
        )

    # What breakers, halts and routes ask of a claim.
    channel = property(lambda self: self.route.channel)
    gateway = property(lambda self: self.route.gateway)
    route_id = property(lambda self: self.route.id)
    is_route_proven = property(lambda self: self.route.is_proven)


@dataclass(slots=True)
class Request:
    """A sender's request, as it arrived, with what was decided about its notifications."""

    request_key: bytes
    source_key: bytes
    reply_address: bytes
    sender: bytes
    request: PushRequest
    arrived_at: datetime
    id: int = 0
    notifications: list[Notification] = field(default_factory=list)

    def answer(self, bridge: str, reports: bytes) -> Answer:
        """Return the answer for packed reports. A report that is not known counts as success."""
        told = tuple(
            Report(n.public_key_hash, n.installation_id, success=code <= 1, error=max(code - 1, 0))
            for n, code in zip(self.request.notifications, reports, strict=True)
            if n.type != NotificationType.UNKNOWN
        )
        return Answer(bridge, self.source_key, self.reply_address, self.request.message_id, told)


@dataclass(slots=True)
class Accepted:
    answers: list[Answer] = field(default_factory=list)
    claimed: list[Notification] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def accept(
    bridge: str, batch: Sequence[Request], limits: ConcurrencyLimits, lease: timedelta, now: datetime
) -> Accepted:
    """Decide about every notification, and store those that are to be delivered: claimed, or offered to all workers."""
    found_keys, routes = fetch_each(*_look_up(bridge, batch, now))
    known = taken = {key for (key,) in found_keys}
    ids = next_ids(len(batch)), next_ids(sum(len(each.request.notifications) for each in batch))
    fresh = [each for each in batch if digest_of(bridge, each.request_key) not in known]
    all_queues = known_queues().and_halted(limits.reach.halts())
    found = {(row[0], row[1]): row[2:] for row in routes}
    for request in fresh:
        _decide(request, found, taken)
    _limit(fresh, now)
    deliver = [n for request in fresh for n in request.notifications if n.verdict is Verdict.DELIVER]
    for n in deliver:
        _claim(n, all_queues, limits, lease, now)
    _store(bridge, fresh, deliver, ids, now)
    count(metrics.REQUESTS, {("new",): len(fresh), ("repeated",): len(batch) - len(fresh)})
    count(metrics.NOTIFICATIONS, ((n.verdict,) for request in fresh for n in request.notifications))
    answered = [request for request in fresh if not any(n.error is None for n in request.notifications)]
    return Accepted(
        [request.answer(bridge, _packed(request)) for request in answered], [n for n in deliver if n.slot], fresh
    )


_DIGESTS: LiteralString = f"SELECT digest FROM {table(RequestDigest)} WHERE digest = ANY (%(digests)b::bytea[])"
_KEYS: LiteralString = """
    SELECT dedup_key FROM proto_notification WHERE dedup_key = ANY (%(keys)b::bytea[])
    UNION ALL SELECT dedup_key FROM proto_notification_history
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND finished_at >= %(since)s AND created_at >= %(since)s
        AND state IN ('delivered', 'unconfirmed')
"""
_ROUTES = f"""
    SELECT r.public_key_hash, r.installation_id, enabled, block_mentions, blocked_chat_list, muted_chat_list,
           allowed_mentions_chat_list, access_token_digest,
           route.id, route.generation, route.token_type, route.app_topic, route.address_encrypted, route.gateway,
           route.address_digest,
           route.failing_since IS NULL AND route.last_success_at >= %(noted_since)s AND route.is_proven, route.is_proven,
           (SELECT count(*) FROM (
               SELECT FROM proto_notification WHERE route_id = route.id AND claimed_at IS NULL LIMIT %(most)s) AS waiting)
    FROM unnest(%(hashes)b::bytea[], %(installations)b::text[]) AS wanted (public_key_hash, installation_id)
    JOIN {table(Registration)} AS r USING (public_key_hash, installation_id)
    JOIN {table(Route)} AS route ON route.id = r.route_id
    WHERE r.state = 'active' AND route.state = 'active'
"""


def _look_up(bridge: str, batch: Sequence[Request], now: datetime) -> list[tuple[LiteralString, Any]]:
    asked = [n for each in batch for n in each.request.notifications]
    wanted = list({(n.public_key_hash, n.installation_id) for n in asked})
    keys = [dedup_key(each.request.message_id, n) for each in batch for n in each.request.notifications]
    return [
        (
            f"{_DIGESTS} UNION ALL {_KEYS}",
            {
                "keys": keys,
                "since": now - DEDUP_WINDOW,
                "digests": [digest_of(bridge, each.request_key) for each in batch],
            },
        ),
        (
            _ROUTES,
            {
                "noted_since": now - NOTED_FOR,
                "most": settings.MAX_OPEN_PER_ROUTE,
                "hashes": [key_hash for key_hash, _ in wanted],
                "installations": [each for _, each in wanted],
            },
        ),
    ]


IDS_AT_ONCE, QUEUES_KNOWN_FOR_SECONDS = 1000, 1.0
_free: list[int] = []
_queues: list[Any] = []


def next_ids(count: int) -> list[int]:
    """Return ids of new rows, of requests and of notifications alike. A process takes a thousand at once."""
    if len(_free) < count:
        [(first,)] = fetch(
            "SELECT setval('proto_notification_id_seq', nextval('proto_notification_id_seq') + %b)",
            [IDS_AT_ONCE + count],
        )
        _free.extend(range(first - IDS_AT_ONCE - count + 1, first + 1))
    taken, _free[:count] = _free[:count], []
    return taken


def known_queues() -> Queues:
    """Return queues and halts as they were a second ago at most."""
    if not _queues or monotonic() - _queues[1] > QUEUES_KNOWN_FOR_SECONDS:
        _queues[:] = [queues.load(), monotonic()]
    return _queues[0]


def dedup_key(message_id: bytes, n: PushNotification) -> bytes:
    """Return 32 bytes that name one push: this message to this installation of this key."""
    parts = (message_id, n.public_key_hash, n.installation_id.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).digest()


def _decide(request: Request, found: dict[Any, Any], taken: set[bytes]) -> None:
    for position, asked in enumerate(request.request.notifications):
        if asked.type != NotificationType.UNKNOWN:
            n = Notification(0, position, asked, source_key=request.source_key, unsent_since=request.arrived_at)
            n.dedup_key = dedup_key(request.request.message_id, asked)
            row = found.get((asked.public_key_hash, asked.installation_id))
            n.route = Route_(*row[6:15]) if row else None
            token = asked.access_token.encode()
            n.verdict = evaluate(
                asked,
                Recipient(row[0], row[1], *map(frozenset, row[2:5])) if row else None,
                is_token_right=bool(row) and keyring().matches(Purpose.ACCESS_TOKEN, token, row[5] or b""),
                is_duplicate=n.dedup_key in taken,
            )
            taken.add(n.dedup_key)
            request.notifications.append(n)


def _limit(fresh: Sequence[Request], now: datetime) -> None:
    buckets = own_buckets()
    for request in fresh:
        sender = b"s" + keyring().digest(Purpose.SENDER, request.sender), settings.SENDER_LIMITS
        for n in request.notifications:
            if n.verdict is Verdict.DELIVER:
                wanted = [(b"r%d" % n.route.id, settings.ROUTE_LIMITS), sender, (b"g", settings.GLOBAL_LIMITS)]
                if not buckets.take(wanted, now=now):
                    n.verdict = Verdict.COALESCED
            elif not n.error:
                buckets.take([sender], now=now)


def _claim(n: Notification, known: Queues, limits: ConcurrencyLimits, lease: timedelta, now: datetime) -> None:
    """Claim a notification where its queue is open and has room; else it is offered. This holds at any attempt."""
    n.queue = known.key(n.route.gateway, n.route.channel, is_proven=n.route.is_proven)
    n.queue_id = known.id_of(n.queue)
    n.due_at, n.expires_at = now, n.expires_at or expires_at(now)
    slot = Slot(n.queue_id)
    n.address = open_address(n.route.address_encrypted, n.route.id)
    if n.address is None:
        n.due_at = datetime.max.replace(tzinfo=now.tzinfo)
    elif not known.covering(n.queue) and limits.enter(slot):
        n.slot, n.claimed_at, n.due_at = slot, now, now + lease
        n.attempt_count += 1


_STORE = """
    WITH digest AS (
        INSERT INTO notifications_requestdigest (digest, received_at)
        SELECT digest, %(now)s FROM unnest(%(digests)b::bytea[]) AS new (digest) ORDER BY 1
    ), request AS (
        INSERT INTO proto_request (id, due_at, bridge, received_at, open_count, request_key, source_key, reply_address,
                                   sender_digest, message_id, reports)
        SELECT id, %(due_at)s, %(bridge)s, %(now)s, open_count, key, source, address, sender, message, reports
        FROM unnest(%(r_id)b::bigint[], %(r_open)b::smallint[], %(r_key)b::bytea[], %(r_source)b::bytea[],
                    %(r_address)b::bytea[], %(r_sender)b::bytea[], %(r_message)b::bytea[], %(r_reports)b::bytea[])
            AS new (id, open_count, key, source, address, sender, message, reports)
    )
    INSERT INTO proto_notification
        (id, request_id, position, due_at, claimed_at, attempt_count, queue_id, route_id, route_generation,
         public_key_hash, installation_id, type, dedup_key, chat_id, message, token_type, app_topic, gateway, expires_at,
         unsent_since, created_at)
    SELECT *, %(now)s FROM unnest(
        %(id)b::bigint[], %(request_id)b::bigint[], %(position)b::smallint[], %(due)b::timestamptz[],
        %(claimed)b::timestamptz[], %(attempts)b::smallint[], %(queue)b::integer[], %(route)b::bigint[],
        %(generation)b::bigint[], %(hash)b::bytea[], %(installation)b::text[], %(type)b::bigint[], %(dedup)b::bytea[],
        %(chat)b::bytea[], %(message)b::bytea[], %(token_type)b::smallint[], %(topic)b::text[], %(gateway)b::text[],
        %(expires)b::timestamptz[], %(unsent)b::timestamptz[]) ORDER BY 13
"""
# With a snapshot of its own: another worker may have ended one of these keys since they were looked up.
_REFUSE_ENDED: LiteralString = f"SELECT 1 / (count(*) = 0)::int FROM ({_KEYS.split('UNION ALL')[1]}) AS ended"


def _store(bridge: str, fresh: Sequence[Request], deliver: Sequence[Notification], ids: Any, now: datetime) -> None:
    for request, request.id in zip(fresh, ids[0], strict=False):
        for n in request.notifications:
            n.request_id = request.id
    for n, n.id in zip(deliver, ids[1], strict=False):
        pass
    sender = {each.sender: keyring().digest(Purpose.SENDER, each.sender) for each in fresh}
    columns = {
        "r_id": [r.id for r in fresh],
        "r_open": [sum(n.error is None for n in r.notifications) for r in fresh],
        "r_key": [r.request_key for r in fresh],
        "r_source": [r.source_key for r in fresh],
        "r_address": [r.reply_address for r in fresh],
        "r_sender": [sender[r.sender] for r in fresh],
        "r_message": [r.request.message_id for r in fresh],
        "r_reports": [_packed(r) for r in fresh],
        "digests": [digest_of(bridge, r.request_key) for r in fresh],
        "id": [n.id for n in deliver],
        "request_id": [n.request_id for n in deliver],
        "position": [n.position for n in deliver],
        "due": [n.due_at for n in deliver],
        "claimed": [n.claimed_at for n in deliver],
        "attempts": [n.attempt_count for n in deliver],
        "queue": [n.queue_id for n in deliver],
        "route": [n.route.id for n in deliver],
        "generation": [n.route.generation for n in deliver],
        "hash": [n.asked.public_key_hash for n in deliver],
        "installation": [n.asked.installation_id for n in deliver],
        "type": [n.asked.type for n in deliver],
        "dedup": [n.dedup_key for n in deliver],
        "chat": [n.asked.chat_id for n in deliver],
        "message": [n.asked.message for n in deliver],
        "token_type": [n.route.token_type for n in deliver],
        "topic": [n.route.channel.app_topic for n in deliver],
        "gateway": [n.route.gateway for n in deliver],
        "expires": [n.expires_at for n in deliver],
        "unsent": [n.unsent_since for n in deliver],
    }
    write(_STORE, columns | {"now": now, "bridge": bridge, "due_at": reply_due_at(now)})
    if deliver:
        write(_REFUSE_ENDED, {"keys": [n.dedup_key for n in deliver], "since": now - DEDUP_WINDOW})
    if any(not n.slot for n in deliver):
        offer()


def _packed(request: Request) -> bytes:
    reports = bytearray(len(request.request.notifications))
    for n in request.notifications:
        reports[n.position] = 0 if n.error is None else 1 + n.error
    return bytes(reports)
