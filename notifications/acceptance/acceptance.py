"""Acceptance of requests: decide about every notification, store it, and claim those that may be sent at once.

A whole batch needs one read and one write (`storing`). A notification that may be sent at once is stored with its
attempt: the process that accepts it claims it, and sends it after the commit.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from kit.buckets.bucket import BucketLimits, Limit
from kit.buckets.shared import Bucket, own_buckets
from kit.db.base import Rows, Statement, fetch_each
from kit.telemetry import count
from notifications import metrics, reports
from notifications.acceptance import statements, storing
from notifications.acceptance.storing import (
    APART_LIMITS,
    EFFECTS,
    Beyond,
    Known,
    count_beyond,
    find_wake_ups,
    leave_out_oldest,
)
from notifications.messages import (
    APART,
    Answer,
    AppKey,
    NotificationType,
    PushLimit,
    PushNotification,
    PushRequest,
    QueueKey,
    ReportError,
    app_key,
)
from notifications.models import Notification
from notifications.policy import Recipient, Verdict, Wish, evaluate, wish_against
from notifications.queues import queues
from notifications.queues.capacity import ConcurrencyLimits, Slot, own_admission
from notifications.queues.claim import NO_SLOT, NOTED_FOR, NOWHERE, Claim, open_address
from notifications.queues.ending import end
from notifications.queues.queues import Queues
from notifications.reports import Errors, Request, expires_at, reply_due_at, stands_for_others_until
from registrations.encryption import Purpose, keyring
from registrations.messages import InstallationKey
from registrations.models import Route

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
class Accepted:
    """The result of a batch of requests: answers that are known at once, pushes to send, and requests that wait.

    ``replayed`` has the source keys of requests that are neither carried out nor answered. They were decided long ago,
    or come too often. ``stored`` has those of the requests that staff can find. All others repeat one, or notify
    nobody.
    """

    answers: list[Answer] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    replayed: set[bytes] = field(default_factory=set)
    stored: set[bytes] = field(default_factory=set)


class Addressee(NamedTuple):
    """An installation that can be notified, with its rules and its route."""

    public_key_hash: bytes
    installation_id: str
    rules: Recipient
    app: AppKey
    access_token_digest: bytes | None
    route_id: int
    route_generation: int
    address_encrypted: bytes
    gateway: str
    address_digest: bytes
    is_route_noted: bool
    is_route_proven: bool
    waiting_count: int


@dataclass(slots=True)
class _Draft:
    """The decision about one notification of a request."""

    position: int
    notification: PushNotification
    to: Addressee | None
    dedup_key: bytes
    verdict: Verdict
    # The recipient's wish by which the notification is suppressed, or the limit that it is beyond.
    why: Wish | PushLimit | None = None
    # It is the one wake-up for all notifications beyond a limit. It goes out when the limit allows.
    wakes_at: datetime | None = None
    queue: QueueKey = NOWHERE
    slot: Slot | None = None  # the capacity that is taken for it, so that it is sent at once
    address: bytes | None = field(default=None, repr=False)

    @property
    def addressee(self) -> Addressee:
        """Return the addressee of a notification that succeeds."""
        assert self.to is not None  # noqa: S101 - it was found, or there would be an error
        return self.to

    @property
    def is_apart(self) -> bool:
        return self.notification.type in APART

    @property
    def is_silent(self) -> bool:
        """Return whether it succeeds without an attempt. The time of the answer must not tell so."""
        return self.error is ReportError.NONE

    @property
    def error(self) -> ReportError | None:
        return ReportError.NONE if self.wakes_at else self.verdict.error

    @property
    def report(self) -> int:
        """Return the byte of its report, see `reports`."""
        if self.is_silent:
            return reports.SILENT
        return reports.MISSING if self.error is None else 1 + self.error


@dataclass(slots=True)
class _Asked:
    """A new request, with the decisions about its notifications."""

    incoming: Incoming
    sender_digest: bytes
    drafts: list[_Draft]
    request: Request = field(init=False)  # its row

    @property
    def is_refused(self) -> bool:
        """Return whether it notifies nobody, because its recipients are not registered or its tokens are wrong."""
        return all(draft.verdict in REFUSALS for draft in self.drafts)

    @property
    def decided(self) -> list[_Draft]:
        """Return the notifications that get no row, because they were decided at once."""
        return [draft for draft in self.drafts if draft.verdict is not Verdict.DELIVER]


def accept(bridge: str, batch: Sequence[Incoming], *, limits: ConcurrencyLimits, now: datetime) -> Accepted:
    """Decide about every notification of every request, and store the result. The caller opens the transaction.

    What is sent at once takes capacity from ``limits``. A repeated request gets the same answer again, unless it comes
    too often. A repeat of a request that still waits gets no answer of its own, because the answer to the first is on
    its way. The caller passes the result to `Delivery.accepted` after the commit.
    """
    known, addressees, ids, all_queues = _look_up(bridge, batch, now=now)
    all_queues = all_queues.and_halted(limits.reach.halts())
    own_admission().refresh()
    taken = storing.release_old(known.dedup_keys, until=now - DEDUP_WINDOW, now=now)
    asked = [_decide_all(incoming, addressees, taken) for incoming in _choose_fresh(batch, known)]
    _limit(asked, now=now)
    _put_into_queues(asked, all_queues, limits)
    crowded = _coalesce(asked)
    claims = _store(bridge, asked, ids, all_queues, now=now)
    count_beyond(_beyond(asked), now=now)
    leave_out_oldest(crowded, limit=settings.MAX_OPEN_PER_ROUTE, now=now)
    repeats, replayed = _choose_repeats(batch, known, now=now)
    repeated = len(batch) - len(asked) - len(replayed)
    count(metrics.REQUESTS, {("new",): len(asked), ("repeated",): repeated, ("replayed",): len(replayed)})
    count(metrics.NOTIFICATIONS, ((draft.verdict,) for draft in _drafts(asked)))
    return Accepted(
        answers=[
            *(one.request.answer(is_traceable=not one.is_refused) for one in asked if one.request.is_complete),
            *(_answer_again(bridge, incoming, errors) for incoming, errors in repeats),
        ],
        claims=claims,
        waiting=[_waiting(one, all_queues, limits) for one in asked if not one.request.is_complete],
        replayed=replayed,
        stored={one.incoming.source_key for one in asked if not one.is_refused},
    )


def withdraw(route_ids: Collection[int], *, now: datetime) -> None:
    """Withdraw the notifications that wait for these routes, because the routes are removed.

    Notifications that ended keep the id of the removed route.
    """
    end(route_ids, State.WITHDRAWN, now=now, by="route_id")


# What is stored already -----------------------------------------------------------------------------------------------


def _look_up(
    bridge: str, batch: Sequence[Incoming], *, now: datetime
) -> tuple[Known, dict[InstallationKey, Addressee], Rows, Queues]:
    """Return what is stored already, the addressees, ids for all rows that may be stored, and all queues."""
    pushes = [(incoming.request.message_id, n) for incoming in batch for n in incoming.request.notifications]
    request_keys = [incoming.request_key for incoming in batch]
    stored, found, ids, waiting = fetch_each(
        storing.find_known(bridge, request_keys, {dedup_key(*push) for push in pushes}, now=now),
        _find_addressees({(n.public_key_hash, n.installation_id) for _, n in pushes}, now=now),
        (statements.NEW_IDS, {"requests": len(batch), "notifications": len(pushes), "attempts": len(pushes)}),
        queues.ALL,
    )
    return storing.read_known(bridge, request_keys, stored), _read_addressees(found), ids, queues.read_queues(waiting)


def _find_addressees(wanted: Collection[InstallationKey], *, now: datetime) -> Statement:
    return statements.FIND_ADDRESSEES, {
        "noted_since": now - NOTED_FOR,
        "max_waiting": settings.MAX_OPEN_PER_ROUTE,
        "hashes": [public_key_hash for public_key_hash, _ in wanted],
        "installations": [installation_id for _, installation_id in wanted],
    }


def _read_addressees(rows: Rows) -> dict[InstallationKey, Addressee]:
    fields = ((*row[:2], Recipient(*row[2:7]), app_key(*row[7:9]), *row[9:]) for row in rows)
    return {each[:2]: Addressee._make(each) for each in fields}


def dedup_key(message_id: bytes, notification: PushNotification) -> bytes:
    """Return 32 bytes that name one push: this Status message to this installation of this key."""
    parts = (message_id, notification.public_key_hash, notification.installation_id.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).digest()


def _choose_fresh(batch: Iterable[Incoming], known: Known) -> Iterable[Incoming]:
    """Return the new requests. Of two copies in one batch the first counts and is answered."""
    fresh: dict[bytes, Incoming] = {}
    for incoming in batch:
        if incoming.request_key not in known.requests and incoming.request_key not in known.replayed:
            fresh.setdefault(incoming.request_key, incoming)
    return fresh.values()


def _choose_repeats(
    batch: Iterable[Incoming], known: Known, *, now: datetime
) -> tuple[list[tuple[Incoming, Errors]], set[bytes]]:
    """Return the repeated requests that are answered again, and the source keys of those that get no answer any more.

    An honest sender repeats a request a few times until it receives the answer. Anybody who recorded a request can send
    it without end.
    """
    repeats, replayed = list[tuple[Incoming, Errors]](), set[bytes]()
    for incoming in batch:
        errors = known.requests.get(incoming.request_key)
        bucket = REPEATED + incoming.request_key, REPEATS
        if errors is not None and own_buckets().take([bucket], now=now):
            repeats.append((incoming, errors))
        elif errors is not None or incoming.request_key in known.replayed:
            replayed.add(incoming.source_key)
    return repeats, replayed


# Decisions ------------------------------------------------------------------------------------------------------------


def _decide_all(incoming: Incoming, addressees: dict[InstallationKey, Addressee], taken: set[bytes]) -> _Asked:
    drafts = [
        _decide(position, notification, addressees, dedup_key(incoming.request.message_id, notification), taken)
        for position, notification in enumerate(incoming.request.notifications)
        # A notification of this type gets no report at all, as in status-go.
        if notification.type != NotificationType.UNKNOWN
    ]
    return _Asked(incoming, keyring().digest(Purpose.SENDER, incoming.sender), drafts)


def _decide(
    position: int,
    notification: PushNotification,
    addressees: dict[InstallationKey, Addressee],
    key: bytes,
    taken: set[bytes],
) -> _Draft:
    """Decide about one notification. ``taken`` are the keys of those that are stored, with this batch's own."""
    to = addressees.get((notification.public_key_hash, notification.installation_id))
    verdict = evaluate(
        notification,
        to.rules if to else None,
        is_token_right=to is not None and _is_token_right(notification, to),
        is_duplicate=key in taken,
        is_overloaded=to is not None and _is_overloaded(to),
    )
    draft = _Draft(position, notification, to, key, verdict)
    if verdict is Verdict.DELIVER:
        taken.add(key)
    elif verdict is Verdict.OVERLOADED:
        draft.why = PushLimit.QUEUE
    elif verdict is Verdict.SUPPRESSED:
        draft.why = wish_against(notification, draft.addressee.rules)
    return draft


def _is_overloaded(to: Addressee) -> bool:
    return own_admission().is_full(to.gateway, to.app, is_proven=to.is_route_proven)


def _is_token_right(notification: PushNotification, to: Addressee) -> bool:
    token = notification.access_token.encode()
    return keyring().matches(Purpose.ACCESS_TOKEN, token, to.access_token_digest or b"")


def _drafts(asked: Iterable[_Asked]) -> Iterator[_Draft]:
    return (draft for one in asked for draft in one.drafts)


def _limit(asked: Iterable[_Asked], *, now: datetime) -> None:
    """Hold back the notifications beyond a limit. Each address keeps one wake-up, due when the limit allows it.

    Every notification that succeeds is charged to its sender, because a sender could otherwise find out, on a phone of
    its own, how many of them were not wanted. Addresses and the server are charged only for what goes out.
    """
    buckets, beyond = own_buckets(), list[tuple[_Draft, list[Bucket]]]()
    for one, draft in ((each, draft) for each in asked for draft in each.drafts if not draft.error):
        of_sender = SENDER + one.sender_digest, settings.SENDER_LIMITS
        if draft.verdict is Verdict.DELIVER:
            wanted = [_bucket_of_route(draft), of_sender, (GLOBAL, settings.GLOBAL_LIMITS)]
            if buckets.take(wanted, now=now):
                continue
            draft.why = _limit_of(draft, *buckets.find_empty(wanted, now=now))
            beyond.append((draft, wanted))
        buckets.take([of_sender], now=now)
    if beyond:
        _hold_back(beyond, now=now)


def _bucket_of_route(draft: _Draft) -> Bucket:
    key = b"r%d/%d" % (draft.addressee.route_id, draft.is_apart)
    return key, APART_LIMITS if draft.is_apart else settings.ROUTE_LIMITS


def _limit_of(draft: _Draft, key: bytes, index: int) -> PushLimit:
    """Return the limit that a notification is beyond: the one with this index, of the bucket with this key."""
    of_address = PushLimit.APART if draft.is_apart else PushLimit.ADDRESS
    limit = {SENDER: PushLimit.SENDER, GLOBAL: PushLimit.SERVER}.get(key[:1], of_address)
    return limit.long if index else limit


def _hold_back(beyond: Sequence[tuple[_Draft, list[Bucket]]], *, now: datetime) -> None:
    routes = {draft.addressee.route_id for draft, _ in beyond}
    woken = find_wake_ups(routes, still_at=stands_for_others_until(now))
    for draft, wanted in beyond:
        bucket = draft.addressee.route_id, draft.is_apart
        if bucket in woken:
            draft.verdict = Verdict.COALESCED
        else:
            woken.add(bucket)
            draft.wakes_at = own_buckets().book(wanted, now=now)


def _put_into_queues(asked: Iterable[_Asked], known: Queues, limits: ConcurrencyLimits) -> None:
    """Put each notification that succeeds into its queue, and take capacity for those that may be sent at once.

    One is left to the next claim when a halt covers its queue, when its address cannot be read, or when the queue has
    no capacity.
    """
    for draft in (draft for draft in _drafts(asked) if not draft.error):
        to = draft.addressee
        draft.queue = known.key(to.gateway, to.app, is_proven=to.is_route_proven)
        if draft.verdict is Verdict.DELIVER and not draft.wakes_at and not known.covering(draft.queue):
            draft.address = open_address(to.address_encrypted, to.route_id)
            slot = Slot(known.id_of(draft.queue))
            draft.slot = slot if draft.address is not None and limits.enter(slot) else None


def _coalesce(asked: Iterable[_Asked]) -> list[int]:
    """Coalesce notifications that cannot be sent at once, and return the routes with more than may wait for them.

    Only the newest such notification of a batch is stored for each route. So a flood costs its victim one row a batch.
    """
    unclaimed: defaultdict[int, list[_Draft]] = defaultdict(list)
    for draft in _drafts(asked):
        if draft.verdict is Verdict.DELIVER and not draft.slot:
            unclaimed[draft.addressee.route_id].append(draft)
    crowded = []
    for route_id, drafts in unclaimed.items():
        to = drafts[0].addressee
        surplus = to.waiting_count + len(drafts) - settings.MAX_OPEN_PER_ROUTE
        for draft in drafts[: min(max(surplus, 0), len(drafts) - 1)]:
            draft.verdict, draft.why = Verdict.COALESCED, PushLimit.WAITING
        own_admission().add(to.gateway, to.app, is_proven=to.is_route_proven)
        if surplus > 0:
            crowded.append(route_id)
    return crowded


def _beyond(asked: Iterable[_Asked]) -> Iterator[Beyond]:
    """Yield the notifications that are beyond a limit."""
    for draft in _drafts(asked):
        if isinstance(draft.why, PushLimit):
            name = draft.notification
            yield Beyond(name.public_key_hash, name.installation_id, EFFECTS[draft.verdict], draft.why)


# Storing --------------------------------------------------------------------------------------------------------------


def _store(bridge: str, asked: Sequence[_Asked], ids: Rows, known: Queues, *, now: datetime) -> list[Claim]:
    """Store requests with the notifications that are to be delivered, and return the claims of what is sent at once."""
    request_ids, notification_ids, attempt_ids = map(iter, ids[0])
    for one in asked:
        one.request = _new_request(bridge, one, next(request_ids), now=now)
    pushes = [
        _new_push(one, draft, next(notification_ids), next(attempt_ids) if draft.slot else 0, known, now=now)
        for one in asked
        for draft in one.drafts
        if draft.verdict is Verdict.DELIVER
    ]
    stored = [one for one in asked if not one.is_refused]
    storing.store([one.request for one in stored], pushes, [each for one in stored for each in _listed(one)], now=now)
    refused = [(one.request.request_key, one.request.decided or b"") for one in asked if one.is_refused]
    storing.store_refused(bridge, refused, now=now)
    return [push for push in pushes if push.attempt_id]


def _new_request(bridge: str, asked: _Asked, request_id: int, *, now: datetime) -> Request:
    incoming = asked.incoming
    return Request(
        id=request_id,
        bridge=bridge,
        source_key=incoming.source_key,
        reply_address=incoming.reply_address,
        message_id=incoming.request.message_id,
        received_at=now,
        reply_due_at=reply_due_at(now),
        reports=reports.pack_reports({draft.position: draft.report for draft in asked.drafts}),
        names=reports.pack_names(draft.notification for draft in asked.drafts),
        request_key=incoming.request_key,
        sender_digest=asked.sender_digest,
        decided=reports.pack(reports.Decided(d.position, d.verdict, d.notification.type, d.why) for d in asked.decided),
    )


def _listed(one: _Asked) -> list[tuple[int, int, bytes]]:
    """Return the request, the first position of each decision about a recipient, and the recipient's key hash."""
    first = {(d.notification.public_key_hash, d.verdict, d.why): d.position for d in reversed(one.decided)}
    return [(one.request.id, position, key_hash) for (key_hash, *_), position in first.items()]


def _new_push(
    one: _Asked, draft: _Draft, notification_id: int, attempt_id: int, known: Queues, *, now: datetime
) -> Claim:
    to, notification, is_wake_up = draft.addressee, draft.notification, draft.wakes_at is not None
    return Claim(
        notification_id=notification_id,
        attempt_number=1,
        app=to.app,
        address=draft.address or b"",
        type=notification.type,
        public_key_hash=notification.public_key_hash,
        # A wake-up stands for other notifications, too. No property of one message may keep it from being delivered.
        chat_id=b"" if is_wake_up else notification.chat_id,
        message=b"" if is_wake_up else notification.message,
        collapse_id=draft.dedup_key[:16].hex(),  # stored by itself, because the dedup key is released after a day
        request_id=one.request.id,
        position=draft.position,
        queue_id=known.id_of(draft.queue),
        created_at=now,
        expires_at=expires_at(now),
        due_at=draft.wakes_at or now,
        unsent_since=draft.wakes_at or one.incoming.arrived_at,
        route_id=to.route_id,
        route_state=Route.State.ACTIVE,
        route_generation=to.route_generation,
        gateway=to.gateway,
        address_encrypted=to.address_encrypted,
        address_digest=to.address_digest,
        is_route_noted=to.is_route_noted,
        is_route_proven=to.is_route_proven,
        queue=draft.queue,
        slot=draft.slot or NO_SLOT,
        started_at=now,
        attempt_id=attempt_id,
        source_key=one.incoming.source_key,
        installation_id=notification.installation_id,
        dedup_key=draft.dedup_key,
        shortened_by=str(draft.why or ""),
        is_wake_up=is_wake_up,
    )


# Answers --------------------------------------------------------------------------------------------------------------


def _waiting(one: _Asked, known: Queues, limits: ConcurrencyLimits) -> Request:
    silent = [draft for draft in one.drafts if draft.is_silent]
    # While no push would leave one of their queues, the silence lasts until the answer is due.
    is_held_up = any(known.covering(draft.queue) or _is_overloaded(draft.addressee) for draft in silent)
    of_silent = () if is_held_up else tuple(draft.queue for draft in silent)
    full = limits.find_full({known.id_of(key) for key in of_silent})
    return one.request._replace(silent_queues=of_silent, full_queue_ids=full)


def _answer_again(bridge: str, incoming: Incoming, errors: Errors) -> Answer:
    """Return the answer to the repeat of a request that was answered already."""
    keys = (bridge, incoming.source_key, incoming.reply_address, incoming.request.message_id)
    return Answer(*keys, reports.repeat_reports(incoming.request.notifications, errors), is_traceable=False)
