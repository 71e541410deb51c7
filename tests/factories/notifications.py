import secrets
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from kit.db.partitions import day_of
from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.messages import QueueKey
from notifications.models import Attempt, Channel, DecidedAtOnce, Halt, Notification, NotificationRequest
from notifications.queues import queues
from notifications.rules.reports import Decided, pack
from registrations.messages import TokenType

REQUEST_ANSWERED_AFTER = timedelta(seconds=1)


def make_request(*, at: datetime | None = None, **fields: Any) -> NotificationRequest:
    """Make a request that still waits for its notifications."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "bridge": "waku",
        "request_key": secrets.token_bytes(32),
        "message_id": secrets.token_bytes(32),
        "state": NotificationRequest.State.WAITING,
        "source_key": secrets.token_bytes(32),
        "sender_digest": secrets.token_bytes(32),
        "reply_address": b"\x02" + secrets.token_bytes(32) + b"/waku/2/rs/16/32",
        "received_at": at,
        "reply_due_at": at + timedelta(seconds=2),
    }
    row = defaults | fields
    is_over = row["state"] == NotificationRequest.State.ANSWERED
    ended = {"ended_on": day_of(row.get("answered_at") or at)} if is_over else {}
    return NotificationRequest.objects.create(**ended | row)


def make_answered_request(*, at: datetime | None = None, **fields: Any) -> NotificationRequest:
    at = at or timezone.now()
    answered = {
        "state": NotificationRequest.State.ANSWERED,
        "answered_at": at + REQUEST_ANSWERED_AFTER,
        "reply_address": None,
    }
    return make_request(at=at, **answered | fields)


def make_notification(
    *, request: NotificationRequest | None = None, at: datetime | None = None, **fields: Any
) -> Notification:
    """Make a notification that is due. Without ``route`` its recipient is unknown."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "position": 0,
        "public_key_hash": secrets.token_bytes(64),
        "installation_id": str(uuid4()),
        "type": 1,
        "state": Notification.State.PENDING,
        "dedup_key": secrets.token_bytes(32),
        "collapse_id": secrets.token_bytes(16),
        "next_attempt_at": at,
        "created_at": at,
        "expires_at": at + timedelta(days=1),
    }
    row = defaults | fields
    is_over = Notification.State(row["state"]).is_terminal
    ended = {"ended_on": day_of(row.get("finished_at") or at)} if is_over else {}
    return Notification.objects.create(request=request or make_request(at=at), **ended | row)


def make_attempt(notification: Notification | None = None, **fields: Any) -> Attempt:
    """Make an attempt whose outcome is not known yet. With an outcome it also has its times."""
    notification = notification or make_notification()
    defaults: dict[str, Any] = {
        "number": 1,
        "gateway": "gorush",
        "token_type": TokenType.FIREBASE,
        "started_at": notification.created_at,
    }
    row = defaults | fields
    if row.get("outcome"):
        took = timedelta(milliseconds=row.get("latency_ms") or 0)
        waited = (row["started_at"] - notification.created_at) // timedelta(milliseconds=1)
        times = {"began_at": row["started_at"], "ended_at": row["started_at"] + took}
        row = {**times, "waited_ms": max(0, waited) if row["number"] == 1 else None} | row
    return Attempt.objects.create(notification=notification, **row)


def make_decided(key_hash: bytes, decided: Decided, *, at: datetime | None = None) -> DecidedAtOnce:
    """Make a request with one push to a user, which was decided at once."""
    request = make_answered_request(at=at, decided=pack([decided]))
    return DecidedAtOnce.objects.create(
        recipient=key_hash[: DecidedAtOnce.RECIPIENT_BYTES],
        request=request,
        position=decided.position,
        decided_on=day_of(request.received_at),
    )


def make_unknown_error(**fields: Any) -> UnknownGatewayError:
    now = timezone.now()
    defaults: dict[str, Any] = {
        "platform": "ios",
        "signature": f"something {uuid4()}",
        "count": 1,
        "first_seen_at": now,
        "last_seen_at": now,
    }
    return UnknownGatewayError.objects.create(**defaults | fields)


def make_channel(key: tuple[int, str] = (1, "im.status.ethereum"), **fields: Any) -> Channel:
    """Make a channel with a delivery, and its queues."""
    now = timezone.now()
    row = Channel.objects.create(**{"token_type": key[0], "app_topic": key[1], "last_success_at": now} | fields)
    queues.create([QueueKey("gorush", row.token_type, row.app_topic, is_proven) for is_proven in (True, False)])
    return row


def make_halt(kind: str, app: tuple[int, str] | None = None, **fields: Any) -> Halt:
    """Make a halt of an app, or of the whole server without one."""
    subject = {"token_type": app[0], "app_topic": app[1]} if app else {}
    return Halt.objects.create(**{"kind": kind, "since": timezone.now()} | subject | fields)
