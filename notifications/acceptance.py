"""Accepting requests: the use case behind every REQUEST, and behind the answer it gets.

Works on batches: one read, a pure decision per notification, one write. Unique constraints make it idempotent: two
batches that meet on the same request or the same push collide, and the caller runs the later one again.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from measuring.batches import count
from notifications import metrics
from notifications.backlog import own_backlog
from notifications.messages import (
    Answer,
    ChannelKey,
    NotificationType,
    PushNotification,
    PushRequest,
    Report,
    channel_key,
)
from notifications.models import Notification, NotificationRequest
from notifications.policy import Recipient, Verdict, evaluate
from notifications.reports import load_reports, report_of
from notifications.transitions import OVER, move
from registrations.encryption import Purpose, Stored
from registrations.inserting import insert_all
from registrations.keyring import keyring
from registrations.models import Registration, Route
from registrations.pairs import InstallationKey, IsOneOf

DEDUP_WINDOW = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Incoming:
    """One REQUEST as it arrived. ``reply_to`` (33 bytes) is its signer."""

    amm_message_id: bytes
    envelope_hash: bytes
    reply_to: bytes
    request: PushRequest


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a batch of requests led to: answers that are known at once, and what waits for a first attempt."""

    answers: list[Answer]
    waiting_request_ids: list[int]
    notification_ids: list[int]


@dataclass(frozen=True, slots=True)
class _Recipient:
    rules: Recipient
    route_id: int
    route_generation: int
    channel: ChannelKey
    access_token_digest: bytes


def accept(batch: Sequence[Incoming], *, now: datetime) -> Accepted:
    """Decide about every notification of every request, and store them. A request seen before is answered as before."""
    with transaction.atomic():
        repeated = _find_requests(incoming.amm_message_id for incoming in batch)
        fresh = {i.amm_message_id: i for i in batch if i.amm_message_id not in repeated}
        requests, notifications = _decide_all(list(fresh.values()), now=now)
        insert_all(requests)
        for notification in notifications:
            notification.request_id = notification.request.pk
        insert_all(notifications)
        count(metrics.REQUESTS, {("new",): len(fresh), ("repeated",): len(batch) - len(fresh)})
        count(metrics.NOTIFICATIONS, ((_VERDICTS[n.state, n.report],) for n in notifications))
    answered_ids = {r.pk for r in requests if r.state == NotificationRequest.State.ANSWERED}
    repeats = [(i, repeated[i.amm_message_id]) for i in batch if i.amm_message_id in repeated]
    return Accepted(
        answers=_answers_known(requests, notifications, fresh) + _answers_repeated(repeats),
        waiting_request_ids=[r.pk for r in requests if r.pk not in answered_ids],
        notification_ids=[n.pk for n in notifications if n.state == Notification.State.PENDING],
    )


# State and report of a notification by the verdict about it. The report of a delivery is fixed after its first attempt.
_CONSEQUENCES: dict[Verdict, tuple[Notification.State, Notification.Reports | None]] = {
    Verdict.DELIVER: (Notification.State.PENDING, None),
    Verdict.SUPPRESSED: (Notification.State.SUPPRESSED, Notification.Reports.SUCCESS),
    Verdict.DUPLICATE: (Notification.State.DUPLICATE, Notification.Reports.SUCCESS),
    Verdict.WRONG_TOKEN: (Notification.State.REFUSED, Notification.Reports.WRONG_TOKEN),
    Verdict.NOT_REGISTERED: (Notification.State.REFUSED, Notification.Reports.NOT_REGISTERED),
    Verdict.OVERLOADED: (Notification.State.REFUSED, Notification.Reports.INTERNAL_ERROR),
}
_VERDICTS: dict[tuple[str, str | None], Verdict] = {
    consequence: verdict for verdict, consequence in _CONSEQUENCES.items()
}


def withdraw(installations: Collection[InstallationKey], *, now: datetime) -> None:
    """Nothing goes to these installations any more: they unregistered, and their routes are gone."""
    if not installations:
        return
    waiting = Notification.objects.filter(IsOneOf(installations))
    move(waiting, Notification.State.WITHDRAWN, finished_at=now, **OVER)


def _find_requests(amm_message_ids: Iterable[bytes]) -> dict[bytes, NotificationRequest]:
    rows = NotificationRequest.objects.filter(amm_message_id__in=set(amm_message_ids))
    return {bytes(row.amm_message_id): row for row in rows}


def _decide_all(batch: Sequence[Incoming], *, now: datetime) -> tuple[list[NotificationRequest], list[Notification]]:
    recipients = _find_recipients(batch)
    taken = _find_taken(batch, now=now)
    requests, notifications = [], []
    for incoming in batch:
        request = _new_request(incoming, now=now)
        decided = [
            _decide(request, position, notification, recipients, taken, now=now)
            for position, notification in enumerate(incoming.request.notifications)
            if notification.type != NotificationType.UNKNOWN  # gets no report at all, as in status-go
        ]
        if all(notification.report for notification in decided):
            request.state, request.answered_at, request.reply_to = NotificationRequest.State.ANSWERED, now, None
        requests.append(request)
        notifications += decided
    return requests, notifications


def _find_recipients(batch: Iterable[Incoming]) -> dict[InstallationKey, _Recipient]:
    wanted = {(n.public_key_hash, n.installation_id) for i in batch for n in i.request.notifications}
    rows = Registration.objects.filter(
        IsOneOf(wanted),
        state=Registration.State.ACTIVE,
        route__state=Route.State.ACTIVE,
    ).values_list(
        "public_key_hash",
        "installation_id",
        "route_id",
        "route__generation",
        "route__token_type",
        "route__apn_topic",
        "access_token_digest",
        "enabled",
        "block_mentions",
        "blocked_chat_list",
        "muted_chat_list",
        "allowed_mentions_chat_list",
    )
    return {(bytes(row[0]), row[1]): _recipient(*row[2:]) for row in rows}


def _recipient(
    route_id: int,
    route_generation: int,
    token_type: int,
    apn_topic: str,
    access_token_digest: Stored | None,
    enabled: bool,
    block_mentions: bool,
    *lists: list[bytes],
) -> _Recipient:
    blocked, muted, allowed_mentions = (frozenset(map(bytes, items)) for items in lists)
    rules = Recipient(enabled, block_mentions, blocked, muted, allowed_mentions)
    channel = channel_key(token_type, apn_topic)
    return _Recipient(rules, route_id, route_generation, channel, bytes(access_token_digest or b""))


def _find_taken(batch: Iterable[Incoming], *, now: datetime) -> set[bytes]:
    """Dedup keys in use. Those older than the window are released: the message may be notified about again."""
    keys = {dedup_key(i.request.message_id, n) for i in batch for n in i.request.notifications}
    rows = Notification.objects.filter(dedup_key__in=keys).values_list("dedup_key", "created_at")
    taken = {bytes(key or b""): created_at for key, created_at in rows}
    released = {key for key, created_at in taken.items() if created_at <= now - DEDUP_WINDOW}
    if released:
        Notification.objects.filter(dedup_key__in=released).update(dedup_key=None)
    return taken.keys() - released


def dedup_key(message_id: bytes, notification: PushNotification) -> bytes:
    """32 bytes that name one push: this Status message to this installation of this key."""
    parts = (message_id, notification.public_key_hash, notification.installation_id.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4) + part for part in parts)).digest()


def _new_request(incoming: Incoming, *, now: datetime) -> NotificationRequest:
    return NotificationRequest(
        amm_message_id=incoming.amm_message_id,
        message_id=incoming.request.message_id,
        state=NotificationRequest.State.WAITING,
        envelope_hash=incoming.envelope_hash,
        reply_to=incoming.reply_to,
        sender_digest=keyring().digest(Purpose.SENDER, incoming.reply_to),
        received_at=now,
        reply_due_at=now + timedelta(seconds=settings.REPLY_DEADLINE_SECONDS),
    )


def _decide(
    request: NotificationRequest,
    position: int,
    notification: PushNotification,
    recipients: dict[InstallationKey, _Recipient],
    taken: set[bytes],
    *,
    now: datetime,
) -> Notification:
    recipient = recipients.get((notification.public_key_hash, notification.installation_id))
    key = dedup_key(bytes(request.message_id), notification)
    verdict = evaluate(
        notification,
        recipient.rules if recipient else None,
        is_token_right=recipient is not None and _is_token_right(notification, recipient),
        is_duplicate=key in taken,
        is_overloaded=recipient is not None and _is_overloaded(recipient),
    )
    row = _new_notification(request, position, notification, verdict, now=now)
    if verdict is Verdict.DELIVER and recipient:
        taken.add(key)
        row.dedup_key = key
        _make_due(row, notification, recipient, now=now)
    return row


def _new_notification(
    request: NotificationRequest, position: int, notification: PushNotification, verdict: Verdict, *, now: datetime
) -> Notification:
    state, report = _CONSEQUENCES[verdict]
    return Notification(
        request=request,
        position=position,
        public_key_hash=notification.public_key_hash,
        installation_id=notification.installation_id,
        type=notification.type,
        state=state,
        report=report,
        created_at=now,
        expires_at=now + timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS),
        finished_at=None if report is None else now,
    )


def _make_due(row: Notification, notification: PushNotification, recipient: _Recipient, *, now: datetime) -> None:
    row.chat_id, row.message = notification.chat_id, notification.message
    row.route_id, row.route_generation = recipient.route_id, recipient.route_generation
    row.next_attempt_at = row.enqueued_at = now


def _is_overloaded(recipient: _Recipient) -> bool:
    return own_backlog().is_full(recipient.channel, settings.MAX_OPEN_NOTIFICATIONS)


def _is_token_right(notification: PushNotification, recipient: _Recipient) -> bool:
    token = notification.access_token.encode()
    return keyring().matches(Purpose.ACCESS_TOKEN, token, recipient.access_token_digest)


def _answers_known(
    requests: Iterable[NotificationRequest], notifications: Iterable[Notification], fresh: dict[bytes, Incoming]
) -> list[Answer]:
    reports: dict[int, list[Report]] = {r.pk: [] for r in requests if r.state == NotificationRequest.State.ANSWERED}
    for notification in notifications:
        if notification.request_id in reports:
            reports[notification.request_id].append(
                report_of(notification.public_key_hash, notification.installation_id, notification.report)
            )
    return [
        _answer(fresh[bytes(request.amm_message_id)], reports[request.pk])
        for request in requests
        if request.pk in reports
    ]


def _answers_repeated(repeats: Sequence[tuple[Incoming, NotificationRequest]]) -> list[Answer]:
    """A repeat of a request that still waits gets no answer of its own: the first one's is on its way."""
    answered = [(i, request) for i, request in repeats if request.state == NotificationRequest.State.ANSWERED]
    reports = load_reports(request.pk for _, request in answered)
    return [_answer(incoming, reports[request.pk]) for incoming, request in answered]


def _answer(incoming: Incoming, reports: Iterable[Report]) -> Answer:
    return Answer(incoming.envelope_hash, incoming.reply_to, incoming.request.message_id, tuple(reports))
