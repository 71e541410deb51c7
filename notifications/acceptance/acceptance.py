"""Acceptance of requests: decide about every notification, store it, and claim those that may be sent at once.

A whole batch needs one read and one write (`storing`). A notification that may be sent at once is stored with its
attempt: the process that accepts it claims it, and sends it after the commit.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit
from kit.buckets.shared import Bucket, own_buckets
from kit.db.partitions import first_day
from kit.db.statements import Statement, fetch_each
from kit.metrics import count
from notifications import metrics
from notifications.acceptance.limits import (
    APART_LIMITS,
    EFFECTS,
    Beyond,
    count_beyond,
    find_wake_ups,
    leave_out_oldest,
)
from notifications.acceptance.storing import (
    Ids,
    Known,
    KnownRequest,
    NewNotification,
    NewRequest,
    find_known,
    ids_for,
    read_known,
    release_old,
    store,
    store_refused,
)
from notifications.delivery.silence import Waiting
from notifications.messages import (
    APART,
    Answer,
    ChannelKey,
    NotificationType,
    PushLimit,
    PushNotification,
    PushRequest,
    QueueKey,
    ReportError,
    channel_key,
)
from notifications.models import Notification
from notifications.queues import queues
from notifications.queues.capacity import ConcurrencyLimits, Slot, own_admission
from notifications.queues.claim import NOTED_FOR, Claim, open_address
from notifications.queues.queues import Queues
from notifications.rules.deadlines import expires_at, reply_due_at, stands_for_others_until
from notifications.rules.policy import Recipient, Verdict, Wish, evaluate, wish_against
from notifications.rules.reports import (
    MISSING,
    SILENT,
    Decided,
    errors_decided,
    errors_of,
    load_errors,
    pack,
    pack_names,
    pack_reports,
    repeat_reports,
    unpack_reports,
)
from notifications.rules.transitions import end
from registrations.encryption import Purpose, keyring
from registrations.messages import InstallationKey
from registrations.models import Registration, Route

DEDUP_WINDOW = timedelta(hours=24)
GLOBAL = b"g"  # the bucket of the whole server
SENDER = b"s"  # with the digest of a sender: its bucket
REPEATED = b"d"  # with the key of a request: the bucket of its repetitions that are answered again
REPEATS: BucketLimits = (Limit(5, 60.0),)
# Anybody can make up requests with these verdicts alone. They leave no row that is kept for long.
REFUSALS = frozenset({Verdict.NOT_REGISTERED, Verdict.WRONG_TOKEN})
State = Notification.State


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request as it arrived.

    ``request_key`` is the same when the request is repeated, and unique within its bridge. ``source_key`` and
    ``reply_address`` come back with the answer. ``sender`` is any value that tells senders apart, for reports.
    ``arrived_at`` is when the bridge received it.
    """

    request_key: bytes
    source_key: bytes
    reply_address: bytes
    sender: bytes
    request: PushRequest
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class Sending:
    """The limits that a process takes capacity from when it sends at once, and the length of its leases."""

    lease: timedelta
    limits: ConcurrencyLimits


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of a batch of requests: answers that are known at once, pushes to send, and requests that wait.

    ``replayed`` has the source keys of requests that are neither carried out nor answered. They were decided long ago,
    or come too often. ``stored`` has those of the requests that staff can find. All others repeat one, or notify
    nobody.
    """

    answers: list[Answer] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    replayed: set[bytes] = field(default_factory=set)
    stored: set[bytes] = field(default_factory=set)


class Addressee(NamedTuple):
    """An installation that can be notified, with its rules and its route."""

    public_key_hash: bytes
    installation_id: str
    enabled: bool
    block_mentions: bool
    blocked_chat_list: list[bytes]
    muted_chat_list: list[bytes]
    allowed_mentions_chat_list: list[bytes]
    access_token_digest: bytes | None
    route_id: int
    route_generation: int
    token_type: int
    app_topic: str
    address_encrypted: bytes
    gateway: str
    address_digest: bytes
    is_route_noted: bool | None
    is_route_proven: bool
    waiting_count: int

    @property
    def channel(self) -> ChannelKey:
        """Return the channel that its pushes belong to."""
        return channel_key(self.token_type, self.app_topic)

    @property
    def rules(self) -> Recipient:
        """Return the rules of this installation, as `policy.evaluate` takes them."""
        lists = (self.blocked_chat_list, self.muted_chat_list, self.allowed_mentions_chat_list)
        return Recipient(self.enabled, self.block_mentions, *map(frozenset, lists))


@dataclass(slots=True)
class _Draft:
    """A notification that is to be stored, and its attempt if it goes out at once."""

    position: int
    notification: PushNotification
    verdict: Verdict
    id: int = 0
    addressee: Addressee | None = None
    dedup_key: bytes = b""
    address: bytes | None = field(default=None, repr=False)
    queue: QueueKey | None = None
    queue_id: int = queues.UNSORTED
    slot: Slot | None = None
    attempt_id: int = 0
    # It is the one wake-up for all notifications beyond a limit. It goes out when the limit allows.
    wakes_at: datetime | None = None
    # The recipient's wish by which the notification is suppressed, or the limit that it is beyond.
    why: Wish | PushLimit | None = None

    @property
    def collapse_id(self) -> bytes:
        """Return the 16 bytes under which the device replaces an earlier push of this notification. They are stored
        with it, because the dedup key is released after a day.
        """
        return self.dedup_key[:16]

    @property
    def is_claimed(self) -> bool:
        return self.slot is not None

    @property
    def is_silent(self) -> bool:
        """Return whether it succeeds without an attempt. The time of the answer must not tell so."""
        return self.error is ReportError.NONE

    @property
    def error(self) -> ReportError | None:
        return ReportError.NONE if self.wakes_at else self.verdict.error

    @property
    def report(self) -> int:
        """Return the byte of its report, see `rules.reports`."""
        if self.is_silent:
            return SILENT
        return MISSING if self.error is None else 1 + self.error


@dataclass(slots=True)
class _Request:
    """A request that is to be stored."""

    incoming: Incoming
    sender_digest: bytes
    drafts: list[_Draft]
    id: int = 0

    @property
    def is_answered(self) -> bool:
        """Return whether it is answered at once, because all its reports are errors."""
        return all(draft.error for draft in self.drafts)

    @property
    def is_refused(self) -> bool:
        """Return whether it notifies nobody, because its recipients are not registered or its tokens are wrong."""
        return all(draft.verdict in REFUSALS for draft in self.drafts)

    @property
    def reports(self) -> bytes:
        """Return the reports of its notifications, as they are stored with it."""
        return pack_reports({draft.position: draft.report for draft in self.drafts})

    @property
    def names(self) -> bytes:
        """Return the recipients of its reports, packed."""
        return pack_names(draft.notification for draft in self.drafts)

    @property
    def stored(self) -> list[_Draft]:
        """Return the notifications that get a row: those that are to be delivered."""
        return [draft for draft in self.drafts if draft.verdict is Verdict.DELIVER]

    @property
    def decided(self) -> list[_Draft]:
        """Return the notifications that were decided at once."""
        return [draft for draft in self.drafts if draft.verdict is not Verdict.DELIVER]


def accept(bridge: str, batch: Sequence[Incoming], *, sending: Sending, now: datetime) -> Accepted:
    """Decide about every notification of every request, and store the result. The caller opens the transaction.

    A repeated request gets the same answer again, unless it comes too often. A repeat of a request that still waits
    gets no answer of its own, because the answer to the first is on its way. The caller passes the result to
    `Delivery.accepted` after the commit.
    """
    known, addressees, free_ids, all_queues = _look_up(bridge, batch, now=now)
    fresh = _choose_fresh(batch, known)
    own_admission().refresh()
    taken = release_old(known.dedup_keys, until=now - DEDUP_WINDOW, now=now)
    requests = [_decide_all(incoming, addressees, taken) for incoming in fresh.values()]
    _limit(requests, now=now)
    all_queues = all_queues.and_halted(sending.limits.reach.halts())
    _choose(requests, all_queues, sending.limits)
    crowded = _coalesce(requests)
    stored = [request for request in requests if not request.is_refused]
    _store(bridge, stored, free_ids, sending, now=now)
    store_refused(bridge, [_refused(request) for request in requests if request.is_refused], now=now)
    count_beyond(_beyond(requests), now=now)
    if crowded:
        leave_out_oldest(crowded, limit=settings.MAX_OPEN_PER_ROUTE, now=now)
    repeats = [i for i in batch if i.request_key in known.requests and known.requests[i.request_key].is_answered]
    answered = _within_limits(repeats, now=now)
    replayed = {i.source_key for i in batch if i.request_key in known.replayed}
    replayed |= {i.source_key for i in repeats} - {i.source_key for i in answered}
    repeated = len(batch) - len(fresh) - len(replayed)
    count(metrics.REQUESTS, {("new",): len(fresh), ("repeated",): repeated, ("replayed",): len(replayed)})
    count(metrics.NOTIFICATIONS, ((draft.verdict,) for request in requests for draft in request.drafts))
    return Accepted(
        answers=[_answer(bridge, request) for request in requests if request.is_answered]
        + _answers_repeated(bridge, [(i, known.requests[i.request_key]) for i in answered]),
        claims=[
            _claim(request, draft, now=now) for request in requests for draft in request.drafts if draft.is_claimed
        ],
        waiting=[
            _waiting(request, all_queues, sending.limits, now=now) for request in requests if not request.is_answered
        ],
        replayed=replayed,
        stored={request.incoming.source_key for request in stored},
    )


def _choose_fresh(batch: Sequence[Incoming], known: Known) -> dict[bytes, Incoming]:
    """Return the new requests by their keys. Of two copies in one batch the first counts and is answered."""
    fresh: dict[bytes, Incoming] = {}
    for incoming in batch:
        key = incoming.request_key
        if key not in known.requests and key not in known.replayed:
            fresh.setdefault(key, incoming)
    return fresh


def withdraw(route_ids: Collection[int], *, now: datetime) -> None:
    """Withdraw the notifications that wait for these routes, because the routes are removed.

    Notifications that ended keep the id of the removed route.
    """
    end(route_ids, State.WITHDRAWN, now=now, by="route_id")


# What is stored already -----------------------------------------------------------------------------------------------


def _look_up(
    bridge: str, batch: Sequence[Incoming], *, now: datetime
) -> tuple[Known, dict[InstallationKey, Addressee], Ids, Queues]:
    """Return what is stored already, the addressees, ids for all rows that may be stored, and all queues."""
    keys = {dedup_key(i.request.message_id, n) for i in batch for n in i.request.notifications}
    request_keys = [incoming.request_key for incoming in batch]
    number = sum(len(incoming.request.notifications) for incoming in batch)
    stored, found, [ids], waiting = fetch_each(
        find_known(bridge, request_keys, keys, now=now),
        _find_addressees(batch, now=now),
        ids_for(len(batch), number, number),
        queues.ALL,
    )
    addressees = {(each.public_key_hash, each.installation_id): each for each in map(Addressee._make, found)}
    return read_known(bridge, request_keys, stored), addressees, Ids._make(ids), queues.read_queues(waiting)


_FIND_ADDRESSEES = f"""
    SELECT registration.public_key_hash, registration.installation_id, enabled, block_mentions,
           blocked_chat_list, muted_chat_list, allowed_mentions_chat_list, access_token_digest,
           route.id, route.generation, route.token_type, route.app_topic, route.address_encrypted, route.gateway,
           route.address_digest,
           route.failing_since IS NULL AND route.last_success_at >= %(noted_since)s AND route.is_proven,
           route.is_proven,
           (SELECT count(*) FROM (
               SELECT FROM notifications_opennotification AS n
               WHERE n.route_id = route.id AND n.state IN ('{State.PENDING}', '{State.RETRYING}')
               LIMIT %(max_waiting)s
           ) AS waiting)
    FROM unnest(%(hashes)b::bytea[], %(installations)b::text[]) AS wanted (public_key_hash, installation_id)
    JOIN registrations_registration AS registration USING (public_key_hash, installation_id)
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND route.state = '{Route.State.ACTIVE}'
"""


def _find_addressees(batch: Iterable[Incoming], *, now: datetime) -> Statement:
    wanted = list({(n.public_key_hash, n.installation_id) for i in batch for n in i.request.notifications})
    return _FIND_ADDRESSEES, {
        "noted_since": now - NOTED_FOR,
        "max_waiting": settings.MAX_OPEN_PER_ROUTE,
        "hashes": [public_key_hash for public_key_hash, _ in wanted],
        "installations": [installation_id for _, installation_id in wanted],
    }


def dedup_key(message_id: bytes, notification: PushNotification) -> bytes:
    """Return 32 bytes that name one push: this Status message to this installation of this key."""
    parts = (message_id, notification.public_key_hash, notification.installation_id.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).digest()


# Decisions ------------------------------------------------------------------------------------------------------------


def _decide_all(incoming: Incoming, addressees: dict[InstallationKey, Addressee], taken: set[bytes]) -> _Request:
    digest = keyring().digest(Purpose.SENDER, incoming.sender)
    drafts = [
        _decide(position, incoming.request.message_id, notification, addressees, taken)
        for position, notification in enumerate(incoming.request.notifications)
        # A notification of this type gets no report at all, as in status-go.
        if notification.type != NotificationType.UNKNOWN
    ]
    return _Request(incoming, digest, drafts)


def _decide(
    position: int,
    message_id: bytes,
    notification: PushNotification,
    addressees: dict[InstallationKey, Addressee],
    taken: set[bytes],
) -> _Draft:
    addressee = addressees.get((notification.public_key_hash, notification.installation_id))
    key = dedup_key(message_id, notification)
    verdict = evaluate(
        notification,
        addressee.rules if addressee else None,
        is_token_right=addressee is not None and _is_token_right(notification, addressee),
        is_duplicate=key in taken,
        is_overloaded=addressee is not None and _is_overloaded(addressee),
    )
    if verdict is not Verdict.DELIVER:
        why = _why(verdict, notification, addressee)
        return _Draft(position, notification, verdict, addressee=addressee, why=why)
    taken.add(key)
    return _Draft(position, notification, verdict, addressee=addressee, dedup_key=key)


def _why(verdict: Verdict, notification: PushNotification, addressee: Addressee | None) -> Wish | PushLimit | None:
    """Return the wish or the limit by which a notification is decided at once, if it is one of them."""
    if verdict is Verdict.OVERLOADED:
        return PushLimit.QUEUE
    return wish_against(notification, addressee.rules) if verdict is Verdict.SUPPRESSED and addressee else None


def _is_overloaded(addressee: Addressee) -> bool:
    return own_admission().is_full(addressee.gateway, addressee.channel, is_proven=addressee.is_route_proven)


def _is_token_right(notification: PushNotification, addressee: Addressee) -> bool:
    token = notification.access_token.encode()
    return keyring().matches(Purpose.ACCESS_TOKEN, token, addressee.access_token_digest or b"")


def _limit(requests: Sequence[_Request], *, now: datetime) -> None:
    """Hold back the notifications beyond a limit. Each address keeps one wake-up, due when the limit allows it.

    Every notification that succeeds is charged to its sender, because a sender could otherwise find out, on a phone of
    its own, how many of them were not wanted. Addresses and the server are charged only for what goes out.
    """
    buckets, beyond = own_buckets(), list[tuple[_Draft, list[Bucket]]]()
    for request, draft in ((each, draft) for each in requests for draft in each.drafts if not draft.error):
        if draft.verdict is Verdict.DELIVER:
            wanted = _buckets_of(request, draft)
            if buckets.take(wanted, now=now):
                continue
            draft.why = _limit_of(draft, *buckets.find_empty(wanted, now=now))
            beyond.append((draft, wanted))
        buckets.take([_bucket_of_sender(request)], now=now)
    _hold_back(beyond, now=now)


def _limit_of(draft: _Draft, key: bytes, index: int) -> PushLimit:
    """Return the limit that a notification is beyond: the one with this index, of the bucket with this key."""
    of_address = PushLimit.APART if draft.notification.type in APART else PushLimit.ADDRESS
    limit = {SENDER: PushLimit.SENDER, GLOBAL: PushLimit.SERVER}.get(key[:1], of_address)
    return limit.long if index else limit


def _within_limits(repeats: Sequence[Incoming], *, now: datetime) -> list[Incoming]:
    """Return the repeated requests that are answered again.

    An honest sender repeats a request a few times until it receives the answer. Anybody who recorded a request can send
    it without end.
    """
    return [i for i in repeats if own_buckets().take([(REPEATED + i.request_key, REPEATS)], now=now)]


def _addressee(draft: _Draft) -> Addressee:
    """Return the addressee of a notification that succeeds."""
    assert draft.addressee is not None  # noqa: S101 - it was found, or there would be an error
    return draft.addressee


def _buckets_of(request: _Request, draft: _Draft) -> list[Bucket]:
    """Return the buckets of a notification that is to be delivered, its route's first."""
    is_apart = draft.notification.type in APART
    return [
        (b"r%d/%d" % (_addressee(draft).route_id, is_apart), APART_LIMITS if is_apart else settings.ROUTE_LIMITS),
        _bucket_of_sender(request),
        (GLOBAL, settings.GLOBAL_LIMITS),
    ]


def _bucket_of_sender(request: _Request) -> Bucket:
    return SENDER + request.sender_digest, settings.SENDER_LIMITS


def _hold_back(beyond: Sequence[tuple[_Draft, list[Bucket]]], *, now: datetime) -> None:
    if not beyond:
        return
    routes = {_addressee(draft).route_id for draft, _ in beyond}
    woken = find_wake_ups(routes, still_at=stands_for_others_until(now))
    for draft, wanted in beyond:
        bucket = _addressee(draft).route_id, draft.notification.type in APART
        if bucket in woken:
            draft.verdict = Verdict.COALESCED
        else:
            woken.add(bucket)
            draft.wakes_at = own_buckets().book(wanted, now=now)


def _choose(requests: Iterable[_Request], known: Queues, limits: ConcurrencyLimits) -> None:
    """Put each notification into its queue, and take capacity for those that may be sent at once."""
    for draft in (draft for request in requests for draft in request.stored):
        _put_into_queue(draft, known)
        if not draft.wakes_at:
            _take_capacity(draft, known, limits)


def _put_into_queue(draft: _Draft, known: Queues) -> None:
    draft.queue = _queue_of(draft, known)
    draft.queue_id = known.id_of(draft.queue)


def _queue_of(draft: _Draft, known: Queues) -> QueueKey:
    addressee = _addressee(draft)
    return known.key(addressee.gateway, addressee.channel, is_proven=addressee.is_route_proven)


def _take_capacity(draft: _Draft, known: Queues, limits: ConcurrencyLimits) -> None:
    """Take capacity for one notification.

    It is left to the next claim when a halt covers its queue, when its address cannot be read, or when the queue has no
    capacity.
    """
    addressee = _addressee(draft)
    if draft.queue is None or known.covering(draft.queue):
        return
    draft.address = open_address(addressee.address_encrypted, addressee.route_id)
    slot = Slot(draft.queue_id)
    if draft.address is not None and limits.enter(slot):
        draft.slot = slot


def _coalesce(requests: Iterable[_Request]) -> list[int]:
    """Coalesce notifications that cannot be sent at once, and return the routes with more than may wait for them.

    Only the newest such notification of a batch is stored for each route. So a flood costs its victim one row a batch.
    """
    unclaimed: defaultdict[int, list[_Draft]] = defaultdict(list)
    addressees: dict[int, Addressee] = {}
    for draft in (draft for request in requests for draft in request.stored if not draft.is_claimed):
        addressee = _addressee(draft)
        addressees[addressee.route_id] = addressee
        unclaimed[addressee.route_id].append(draft)
    crowded = []
    for route_id, drafts in unclaimed.items():
        surplus = addressees[route_id].waiting_count + len(drafts) - settings.MAX_OPEN_PER_ROUTE
        for draft in drafts[: min(max(surplus, 0), len(drafts) - 1)]:
            draft.verdict, draft.why = Verdict.COALESCED, PushLimit.WAITING
        to = addressees[route_id]
        own_admission().add(to.gateway, to.channel, is_proven=to.is_route_proven)
        if surplus > 0:
            crowded.append(route_id)
    return crowded


def _silent_queues(request: _Request, known: Queues) -> list[QueueKey]:
    """Return the queue of each notification that succeeds without an attempt, or none if no push would leave there."""
    silent = [draft for draft in request.drafts if draft.is_silent]
    queues_of = [_queue_of(draft, known) for draft in silent]
    is_open = not any(known.covering(key) for key in queues_of)
    return queues_of if is_open and not any(_is_overloaded(_addressee(draft)) for draft in silent) else []


def _beyond(requests: Iterable[_Request]) -> Iterator[Beyond]:
    """Yield the notifications that are beyond a limit."""
    for draft in (draft for request in requests for draft in request.drafts):
        if isinstance(draft.why, PushLimit):
            name = draft.notification
            yield Beyond(name.public_key_hash, name.installation_id, EFFECTS[draft.verdict], draft.why)


# Storing --------------------------------------------------------------------------------------------------------------


def _store(bridge: str, requests: Sequence[_Request], free: Ids, sending: Sending, *, now: datetime) -> None:
    if not requests:
        return
    new = [_new_request(request, lease_until=now + sending.lease, now=now) for request in requests]
    ids = store(bridge, new, free, now=now, reply_due_at=reply_due_at(now))
    for request, request_id in zip(requests, ids.requests, strict=True):
        request.id = request_id
    drafts = [draft for request in requests for draft in request.stored]
    for draft, notification_id in zip(drafts, ids.notifications, strict=True):
        draft.id = notification_id
    claimed = [draft for draft in drafts if draft.is_claimed]
    for draft, attempt_id in zip(claimed, ids.attempts, strict=True):
        draft.attempt_id = attempt_id


def _new_request(request: _Request, *, lease_until: datetime, now: datetime) -> NewRequest:
    incoming, is_answered = request.incoming, request.is_answered
    return NewRequest(
        request_key=incoming.request_key,
        source_key=incoming.source_key,
        reply_address=None if is_answered else incoming.reply_address,
        sender_digest=request.sender_digest,
        message_id=incoming.request.message_id,
        answered_at=now if is_answered else None,
        reports=request.reports,
        names=b"" if is_answered else request.names,
        decided=_pack(request.decided),
        decided_for=_recipients(request.decided),
        notifications=[
            _new_notification(draft, incoming.arrived_at, lease_until=lease_until, now=now) for draft in request.stored
        ],
    )


def _pack(decided: Iterable[_Draft]) -> bytes | None:
    return pack(Decided(d.position, d.verdict, d.notification.type, d.why) for d in decided)


def _refused(request: _Request) -> tuple[bytes, bytes]:
    """Return what is stored of a request that notifies nobody: its key and its packed verdicts."""
    return request.incoming.request_key, _pack(request.decided) or b""


def _recipients(decided: Sequence[_Draft]) -> list[tuple[int, bytes]]:
    """Return the first position of each decision about a recipient, and the recipient's key hash."""
    first = {(d.notification.public_key_hash, d.verdict, d.why): d.position for d in reversed(decided)}
    return [(position, key_hash) for (key_hash, *_), position in first.items()]


def _new_notification(draft: _Draft, arrived_at: datetime, *, lease_until: datetime, now: datetime) -> NewNotification:
    addressee, notification, is_claimed = _addressee(draft), draft.notification, draft.is_claimed
    return NewNotification(
        position=draft.position,
        public_key_hash=notification.public_key_hash,
        installation_id=notification.installation_id,
        type=notification.type,
        state=(State.IN_FLIGHT if is_claimed else State.PENDING).value,
        queue_id=draft.queue_id,
        route_id=addressee.route_id,
        route_generation=addressee.route_generation,
        dedup_key=draft.dedup_key,
        collapse_id=draft.collapse_id,
        # A wake-up stands for other notifications, too. No property of one message may keep it from being delivered.
        chat_id=None if draft.wakes_at else notification.chat_id,
        message=None if draft.wakes_at else notification.message,
        attempt_count=int(is_claimed),
        next_attempt_at=None if is_claimed else draft.wakes_at or now,
        lease_until=lease_until if is_claimed else None,
        is_wake_up=draft.wakes_at is not None,
        shortened_by=str(draft.why or ""),
        expires_at=expires_at(now),
        unsent_since=draft.wakes_at or arrived_at,
        claimed_at=now if is_claimed else None,
        gateway=addressee.gateway,
        **addressee.channel._asdict(),
    )


# Values for delivery and answers --------------------------------------------------------------------------------------


def _claim(request: _Request, draft: _Draft, *, now: datetime) -> Claim:
    addressee, notification = _addressee(draft), draft.notification
    assert draft.queue is not None and draft.slot is not None  # noqa: S101, PT018 - claimed
    return Claim(
        notification_id=draft.id,
        attempt_number=1,
        channel=addressee.channel,
        address=draft.address or b"",
        type=notification.type,
        public_key_hash=notification.public_key_hash,
        chat_id=notification.chat_id,
        message=notification.message,
        collapse_id=draft.collapse_id.hex(),
        request_id=request.id,
        position=draft.position,
        queue_id=draft.queue_id,
        created_at=now,
        expires_at=expires_at(now),
        due_at=now,
        unsent_since=request.incoming.arrived_at,
        route_id=addressee.route_id,
        route_state=Route.State.ACTIVE,
        route_generation=addressee.route_generation,
        gateway=addressee.gateway,
        address_encrypted=addressee.address_encrypted,
        address_digest=addressee.address_digest,
        is_route_noted=bool(addressee.is_route_noted),
        is_route_proven=addressee.is_route_proven,
        queue=draft.queue,
        slot=draft.slot,
        started_at=now,
        attempt_id=draft.attempt_id,
        source_key=request.incoming.source_key,
    )


def _waiting(request: _Request, known: Queues, limits: ConcurrencyLimits, *, now: datetime) -> Waiting:
    silent_queues = _silent_queues(request, known)
    full = limits.find_full({known.id_of(key) for key in silent_queues})
    return Waiting(request.id, request.incoming.source_key, now, reply_due_at(now), silent_queues, full)


def _answer(bridge: str, request: _Request) -> Answer:
    incoming, reports = request.incoming, unpack_reports(request.reports, request.names)
    return Answer(
        *(bridge, incoming.source_key, incoming.reply_address, incoming.request.message_id, reports),
        is_traceable=not request.is_refused,
    )


def _answers_repeated(bridge: str, repeats: Sequence[tuple[Incoming, KnownRequest]]) -> list[Answer]:
    """Return the answers to repeats of requests that were answered already."""
    old = {known.id: known.decided for _, known in repeats if known.id is not None and known.reports is None}
    errors = load_errors(old, since=first_day(known.received_at for _, known in repeats)) if old else {}
    return [
        Answer(
            bridge,
            i.source_key,
            i.reply_address,
            i.request.message_id,
            repeat_reports(i.request.notifications, _errors(known, errors)),
            is_traceable=False,
        )
        for i, known in repeats
    ]


def _errors(known: KnownRequest, old: Mapping[int, dict[int, ReportError]]) -> dict[int, ReportError]:
    if known.reports is not None:
        return errors_of(known.reports)
    return errors_decided(known.decided) if known.id is None else old[known.id]
