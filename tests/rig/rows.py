"""Builder of rows: one valid row of any table, with the fewest facts. A test names only the values that it is about.

Each column that needs a value gets one by its name or its type. `OWN` has the values of single tables for which that
does not do.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from django.contrib.auth.models import Group, User
from django.db.models import (
    NOT_PROVIDED,
    BinaryField,
    BooleanField,
    DateField,
    DateTimeField,
    DecimalField,
    Field,
    FloatField,
    ForeignKey,
    IntegerField,
    Model,
    UUIDField,
)
from django.utils import timezone

from kit.db.base import fetch
from kit.db.clock import day_of
from notifications.acceptance.statements import NEW_IDS
from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.messages import PushNotification, QueueKey, ReportError
from notifications.models import (
    AnsweredRequest,
    Attempt,
    Channel,
    DecidedAtOnce,
    EndedAttempt,
    EndedNotification,
    Halt,
    Notification,
    NotificationRequest,
    OpenNotification,
    OpenRequest,
)
from notifications.queues import queues
from notifications.queues.ending import ending
from notifications.reports import MISSING, TRIED, Decided, pack, pack_names
from pushserver.console.models import CanaryRun
from registrations.encryption import Purpose, keyring
from registrations.messages import TokenType, identity_of
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from waku_bridge.messages import MessageType
from waku_bridge.models import (
    CanaryEnvelope,
    DeadLetter,
    EndedEnvelope,
    EndedReply,
    InboundEnvelope,
    OpenEnvelope,
    OpenReply,
    OutboundReply,
    StoreWatermark,
)
from xmpp_bridge.models import App, Device

M = TypeVar("M", bound=Model)
PUBSUB_TOPIC = "/waku/2/rs/16/32"
CONTENT_TOPIC = "/waku/1/0x01020304/rfc26"
REQUEST_ANSWERED_AFTER = timedelta(seconds=1)
# Values of required columns by name, in all tables. A function is called for each row.
NAMED: dict[str, Any] = {
    "bridge": "waku",
    "gateway": "gorush",
    "token_type": TokenType.FIREBASE,
    "pubsub_topic": PUBSUB_TOPIC,
    "content_topic": CONTENT_TOPIC,
    "source": "http://127.0.0.1:8645",
    "path": InboundEnvelope.Path.LIVE,
    "public_key_hash": partial(secrets.token_bytes, 64),
    "installation_id": lambda: str(uuid4()),
    "timestamp_ns": time.time_ns,
    "position": 0,
}
# Values of other required columns by type and the time of the row. A text is empty.
TYPED: tuple[tuple[Any, Callable[[datetime], Any]], ...] = (
    (DateTimeField, lambda at: at),
    (DateField, day_of),
    (BinaryField, lambda _: secrets.token_bytes(32)),
    (UUIDField, lambda _: uuid4()),
    (BooleanField, lambda _: True),
    ((IntegerField, FloatField, DecimalField), lambda _: 1),
)
# Values of single tables, by the time of the row.
OWN: dict[type[Model], Callable[[datetime], dict[str, Any]]] = {
    InboundEnvelope: lambda at: {"payload": secrets.token_bytes(200), "due_at": at},
    OutboundReply: lambda at: {
        "message_type": MessageType.RESPONSE,
        "payload": secrets.token_bytes(200),
        "due_at": at,
    },
    StoreWatermark: lambda _: {"node": f"http://{secrets.token_hex(4)}.test:8645"},
    DeadLetter: lambda _: {"reason": "malformed", "content_topic": "", "raw": "{}", "size_bytes": 2},
    CanaryRun: lambda at: {"network": "waku", "state": "passed", "finished_at": at},
    NotificationRequest: lambda at: {
        "state": NotificationRequest.State.WAITING,
        "reply_address": b"\x02" + secrets.token_bytes(32) + PUBSUB_TOPIC.encode(),
        "reply_due_at": at + timedelta(seconds=2),
        "reports": b"",
        "names": b"",
    },
    Notification: lambda at: {
        "state": Notification.State.PENDING,
        "dedup_key": secrets.token_bytes(32),
        "collapse_id": secrets.token_bytes(16),
        "due_at": at,
        "expires_at": at + timedelta(days=1),
    },
    UnknownGatewayError: lambda _: {"platform": "ios", "signature": f"something {uuid4()}", "count": 1},
    Registration: lambda _: {"state": Registration.State.ACTIVE, "enabled": True},
    Grant: lambda _: {"server_public_key": b"\x02" + secrets.token_bytes(32), "signature": secrets.token_bytes(65)},
    RegistrationEvent: lambda _: {"kind": RegistrationEvent.Kind.REGISTERED},
    App: lambda _: {"slug": f"app-{secrets.token_hex(4)}", "app_topic": "org.example.chat"},
    Device: lambda _: {"domain": "capulet.test"},
}


# The tables behind a view: of its open rows, and of those that have ended.
BEHIND: dict[type[Model], tuple[type[Model], type[Model]]] = {
    NotificationRequest: (OpenRequest, AnsweredRequest),
    Notification: (OpenNotification, EndedNotification),
    Attempt: (EndedAttempt, EndedAttempt),
    InboundEnvelope: (OpenEnvelope, EndedEnvelope),
    OutboundReply: (OpenReply, EndedReply),
}


def make(model: type[M], *, at: datetime | None = None, **fields: Any) -> M:
    """Make a row with these values, in which every time that needs a value is ``at``. A row that is over has ended at
    ``at``, or when it was answered or finished.
    """
    at = at or timezone.now()
    own = OWN[model](at) if model in OWN else {}
    if model is Notification and fields.get("state") == Notification.State.IN_FLIGHT:
        own |= {"attempt_id": new_attempt_id(), "claimed_at": at, "attempt_count": 1}
        own |= {"gateway": "gorush", "token_type": TokenType.FIREBASE}
    row = own | fields
    row |= {field.name: _value_of(field, at) for field in _required(model) if field.name not in row}
    is_over = _is_over(model, row.get("state"))
    if is_over:
        row = {"ended_on": day_of(row.get("answered_at") or row.get("finished_at") or at)} | row
    if model not in BEHIND:
        return model._default_manager.create(**row)
    table = BEHIND[model][is_over]
    names = {name for field in table._meta.concrete_fields for name in (field.name, field.attname)}
    stored = table._default_manager.create(**{name: value for name, value in row.items() if name in names})
    if model is Notification:
        _note_in_request(stored)
    shown = [field.attname for field in model._meta.concrete_fields if field.attname in names]
    return model.from_db(stored._state.db, shown, [getattr(stored, name) for name in shown])


def _note_in_request(row: OpenNotification | EndedNotification) -> None:
    """Put the report of a notification, and its recipient, into its request, as far as both wait."""
    is_untried = row.state == "pending" or (row.state == "in_flight" and row.attempt_count < 2)
    is_open = row.state in {"in_flight", "retrying", "ambiguous"}
    error = ReportError.NOT_REGISTERED if row.state == "dead_token" else ReportError.NONE
    code = MISSING if is_untried else TRIED if is_open else 1 + error
    names = pack_names([PushNotification(bytes(row.public_key_hash), row.installation_id, "", 1)])
    for request in OpenRequest.objects.filter(pk=row.request_id):
        request.reports = bytes(request.reports).ljust(row.position, b"\0") + bytes([code])
        request.names = bytes(request.names) + names
        request.save()


def new_attempt_id() -> int:
    [(_, _, [pk])] = fetch(NEW_IDS, {"requests": 0, "notifications": 0, "attempts": 1})
    return int(pk)


def delete_all(model: type[Model]) -> None:
    """Delete all rows of a table, or those behind a view."""
    for table in BEHIND.get(model, (model,)):
        table._default_manager.all().delete()


def end_open(state: str, *, at: datetime | None = None) -> None:
    """End all open notifications in this state, whatever `transitions` allows."""
    now = at or timezone.now()
    fetch(ending("TRUE", "%(state)s"), {"state": state, "now": now, "today": day_of(now)})


@cache
def _required(model: type[Model]) -> list[Field]:
    """Return the columns that need a value: without a default, and not made by the database."""
    return [
        field
        for field in model._meta.concrete_fields
        if field.name != "ended_on"
        if not (field.null or field.has_default() or field.generated)
        and field.db_default is NOT_PROVIDED
        and field is not model._meta.auto_field
    ]


def _value_of(field: Field, at: datetime) -> Any:
    if field.name in NAMED:
        value = NAMED[field.name]
        return value() if callable(value) else value
    if isinstance(field, ForeignKey):
        return make(field.related_model, at=at)
    return next((value(at) for kind, value in TYPED if isinstance(field, kind)), "")


def _is_over(model: Any, state: Any) -> bool:
    """Return whether a row in this state is no longer among the rows under way."""
    if model is NotificationRequest:
        return bool(state == NotificationRequest.State.ANSWERED)
    by_day = model in {InboundEnvelope, OutboundReply, Notification}
    return by_day and bool(state) and bool(model.State(state).is_terminal)


# Rows of which the defaults are enough: an envelope and a reply that wait, a canary run that passed, a store that was
# read up to ``at`` at a node of its own, a request that waits for its notifications,
# a notification that is due and whose recipient is unknown unless it has a ``route``.
make_envelope = partial(make, InboundEnvelope)
make_reply = partial(make, OutboundReply)
make_canary_run = partial(make, CanaryRun)
make_canary_envelope = partial(make, CanaryEnvelope)
make_watermark = partial(make, StoreWatermark)
make_dead_letter = partial(make, DeadLetter)
make_request = partial(make, NotificationRequest)
make_notification = partial(make, Notification)
make_unknown_error = partial(make, UnknownGatewayError)
make_event = partial(make, RegistrationEvent)
make_xmpp_app = partial(make, App)
make_xmpp_canary_run = partial(make, CanaryRun, network="xmpp")


def make_answered_request(*, at: datetime | None = None, **fields: Any) -> NotificationRequest:
    at = at or timezone.now()
    answered = {"answered_at": at + REQUEST_ANSWERED_AFTER, "reply_address": None}
    return make_request(at=at, state=NotificationRequest.State.ANSWERED, **answered | fields)


def make_attempt(notification: Notification | None = None, **fields: Any) -> Attempt:
    """Make an attempt. With an outcome it also has its times."""
    notification = notification or make_notification()
    row = {"number": 1, "started_at": notification.created_at} | fields
    if row.get("outcome"):
        took = timedelta(milliseconds=row.get("latency_ms") or 0)
        waited = (row["started_at"] - notification.created_at) // timedelta(milliseconds=1)
        times = {"began_at": row["started_at"], "ended_at": row["started_at"] + took}
        row = {**times, "waited_ms": max(0, waited) if row["number"] == 1 else None} | row
    return make(Attempt, notification=notification, **row)


def make_decided(key_hash: bytes, decided: Decided, *, at: datetime | None = None) -> DecidedAtOnce:
    """Make a request with one push to a user, which was decided at once."""
    request = make_answered_request(at=at, decided=pack([decided]))
    recipient = key_hash[: DecidedAtOnce.RECIPIENT_BYTES]
    return make(DecidedAtOnce, recipient=recipient, request=request, position=decided.position, at=request.received_at)


def make_channel(key: tuple[int, str] = (TokenType.APN, "im.status.ethereum"), **fields: Any) -> Channel:
    """Make a channel with a delivery, and its queues."""
    row = make(Channel, **{"token_type": key[0], "app_topic": key[1]} | fields)
    queues.create([QueueKey("gorush", row.token_type, row.app_topic, is_proven) for is_proven in (True, False)])
    return row


def make_halt(kind: str, app: tuple[int, str] | None = None, **fields: Any) -> Halt:
    """Make a halt of an app, or of the whole server without one."""
    subject = {"token_type": app[0], "app_topic": app[1]} if app else {}
    return make(Halt, kind=kind, **subject, **fields)


def make_route(*, device_token: str = "", token_type: int = TokenType.FIREBASE, **fields: Any) -> Route:
    """Make an address. With ``last_success_at`` it is proven, unless ``delivered_digest`` differs from its digest."""
    token = (device_token or (apn_token() if token_type == TokenType.APN else firebase_token())).encode()
    digest = keyring().digest(Purpose.ADDRESS, identity_of(token_type, fields.get("app_topic", ""), token))
    address = {"address_encrypted": keyring().encrypt(Purpose.ADDRESS, token), "address_digest": digest}
    proof = {"delivered_digest": digest} if fields.get("last_success_at") else {}
    return make(Route, token_type=token_type, **address | proof | fields)


def make_registration(
    *, access_token: str = "", device_token: str = "", at: datetime | None = None, **fields: Any
) -> Registration:
    """Make an active registration with a route of its own. With ``route=None`` and another ``state`` it is a
    tombstone.
    """
    token = (access_token or str(uuid4())).encode()
    if "route" not in fields:
        fields["route"] = make_route(device_token=device_token, at=at)
    tokens = {
        "access_token_encrypted": keyring().encrypt(Purpose.ACCESS_TOKEN, token),
        "access_token_digest": keyring().digest(Purpose.ACCESS_TOKEN, token),
        "content_digest": keyring().digest(Purpose.CONTENT, secrets.token_bytes(64)),
    }
    return make(Registration, at=at, **tokens | fields)


def make_grant(registration: Registration | None = None, **fields: Any) -> Grant:
    registration = registration or make_registration()
    facts = {"access_token_digest": registration.access_token_digest, "granted_at": registration.updated_at}
    return make(Grant, registration=registration, **facts | fields)


def make_topic_key(*, public_key_hash: bytes = b"", key: bytes = b"", **fields: Any) -> TopicKey:
    names = {"name": (public_key_hash or secrets.token_bytes(64)).hex(), "topic": secrets.randbits(32)}
    sealed = keyring().encrypt(Purpose.TOPIC_KEY, key or secrets.token_bytes(32))
    return make(TopicKey, key_encrypted=sealed, **names | fields)


def make_device(*, at: datetime | None = None, **fields: Any) -> Device:
    """Make an active XMPP device with a route of its own. With ``route=None`` and another ``state`` it has ended."""
    if "route" not in fields:
        fields["route"] = make_route(at=at, is_end_awaited=True)
    return make(Device, at=at, **fields)


class Story(NamedTuple):
    """Rows that a request about one user leaves."""

    registration: Registration
    request: NotificationRequest
    notification: Notification


def make_story(*, envelope: Mapping[str, Any] | None = None, **user: Any) -> Story:
    """Make a row of every table of facts that a user, a request and its answer leave, with one failed attempt."""
    registration = make_registration(**user)
    names = {"public_key_hash": registration.public_key_hash, "installation_id": registration.installation_id}
    make_grant(registration)
    make_event(pseudonym=registration.pseudonym)
    make_topic_key(public_key_hash=registration.public_key_hash)
    request = make_request()
    notification = make_notification(request=request, route=registration.route, **names)
    make_attempt(notification, outcome="transient", code="unreachable", latency_ms=12)
    received = {"hash": request.source_key, "message_id": request.request_key, "message_type": MessageType.REQUEST}
    make_envelope(**received | dict(envelope or {}))
    make_reply(envelope_hash=request.source_key)
    return Story(registration, request, notification)


def make_delivered(key_hash: bytes, *, ago: timedelta = timedelta(minutes=5), **fields: Any) -> Notification:
    """Make a notification that failed once and then arrived, with all that it leaves. Its sender got one reply."""
    at = timezone.now() - ago
    registration = make_registration(public_key_hash=key_hash)
    make_grant(registration)
    make_event(pseudonym=registration.pseudonym)
    request = make_answered_request(at=_after(at, 0.04))
    ids = {"hash": request.source_key, "message_id": request.request_key, "message_type": MessageType.REQUEST}
    make_envelope(state="processed", at=at, processed_at=request.received_at, payload=None, **ids)
    times = {"at": _after(at, 1), "published_at": _after(at, 1.2), "confirmed_at": _after(at, 3.7)}
    reply = {"state": "confirmed", "attempt_count": 1, "node": "http://node.test:8645", "payload": None}
    make_reply(envelope_hash=request.source_key, **reply | times)
    user = {"public_key_hash": key_hash, "installation_id": registration.installation_id, "route": registration.route}
    end = {"state": "delivered", "report": "success", "finished_at": _after(at, 4), "attempt_count": 2}
    notification = make_notification(request=request, **user | {"at": request.received_at} | end | fields)
    for number, (outcome, code, seconds) in enumerate([("transient", "unreachable", 0.1), ("delivered", "", 3.9)], 1):
        facts = {"outcome": outcome, "code": code, "latency_ms": 100, "started_at": _after(at, seconds)}
        make_attempt(notification, number=number, **facts)
    return notification


def _after(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=seconds)


def make_xmpp_push(**fields: Any) -> Notification:
    """Make the rows of a push of XMPP that was delivered."""
    at, device = timezone.now() - timedelta(minutes=5), make_device()
    request = make_answered_request(at=at, answered_at=at, bridge="xmpp", message_id=b"")
    device_id = {"public_key_hash": b"", "installation_id": str(device.pk), "route": device.route}
    end = {"state": "delivered", "report": "success", "finished_at": _after(at, 1), "attempt_count": 1}
    notification = make_notification(request=request, at=at, type=0, grade="high", **device_id | end | fields)
    make_attempt(notification, outcome="delivered", latency_ms=80, started_at=_after(at, 0.2))
    return notification


def make_staff(role: str, name: str = "") -> User:
    """Make an account of the console with this role, which is also its name unless there is another one."""
    user = User.objects.create_user(name or role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return user


# Device tokens in the formats of Apple and Firebase. Each contains its name, so that a test can search for it.


def firebase_token(name: str = "") -> str:
    """Return a Firebase token of 163 characters that begins with ``name``."""
    return f"{name or secrets.token_urlsafe(16)}:APA91b".ljust(163, "x")


def apn_token(name: str = "") -> str:
    """Return an Apple token of 64 characters that begins with ``name`` in hex."""
    return (name.encode().hex() or secrets.token_hex(32)).ljust(64, "0")
