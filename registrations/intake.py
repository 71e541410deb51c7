"""Registering and unregistering: the use case behind every REGISTRATION that decrypted.

Works on batches: one locked read, a pure decision per message, one write. Two batches that meet on a new installation
collide on its unique constraint; the caller runs the later one again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import transaction

from measuring.batches import count
from registrations import metrics
from registrations.encryption import Purpose
from registrations.keyring import keyring
from registrations.messages import RegistrationMessage
from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.pairs import InstallationKey, IsOneOf
from registrations.rules import Acceptance, Known, Refusal, decide

SETTINGS_FIELDS = (
    "enabled",
    "allow_from_contacts_only",
    "block_mentions",
    "allowed_key_list",
    "blocked_chat_list",
    "muted_chat_list",
    "allowed_mentions_chat_list",
)
CHANGING_FIELDS = [
    *("version", "state", "route", "access_token_encrypted", "access_token_digest"),
    *SETTINGS_FIELDS,
    *("content_digest", "pseudonym", "updated_at"),
]

CHANGING_ROUTE_FIELDS = [
    *("token_type", "apn_topic", "device_token_encrypted", "device_token_digest", "state"),
    *("disabled_reason", "disabled_at", "generation", "failing_since"),
]


@dataclass(frozen=True, slots=True)
class Submission:
    """One registration as it arrived. ``content`` is the decrypted body; ``message`` is None when it does not parse."""

    public_key_hash: bytes
    content: bytes = field(repr=False)
    message: RegistrationMessage | None
    grant_verified: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    decision: Acceptance | Refusal

    @property
    def is_accepted(self) -> bool:
        return isinstance(self.decision, Acceptance)


@dataclass(slots=True)
class _Batch:
    """The installations a batch is about, changed in memory first and written at once."""

    registrations: dict[InstallationKey, Registration]
    server_public_key: bytes
    now: datetime
    created: dict[InstallationKey, Registration] = field(default_factory=dict)
    changed: dict[InstallationKey, Registration] = field(default_factory=dict)
    new_routes: list[Route] = field(default_factory=list)
    changed_routes: dict[int, Route] = field(default_factory=dict)
    removed_route_ids: set[int] = field(default_factory=set)
    grants: dict[InstallationKey, Grant] = field(default_factory=dict)
    events: list[RegistrationEvent] = field(default_factory=list)


def register(submissions: Sequence[Submission], *, server_public_key: bytes, now: datetime) -> list[Outcome]:
    """Decide about each submission in turn and store what was accepted; one outcome each, in order.

    ``server_public_key`` (33 bytes) is the identity that the grants authorise.
    """
    with transaction.atomic():
        batch = _Batch(_lock_known(submissions), server_public_key, now)
        outcomes = [_take_in(batch, submission) for submission in submissions]
        _write(batch)
        count(metrics.REGISTRATIONS, ((outcome.decision,) for outcome in outcomes))
        count(metrics.REGISTRATION_EVENTS, ((event.kind,) for event in batch.events))
    return outcomes


def _lock_known(submissions: Iterable[Submission]) -> dict[InstallationKey, Registration]:
    keys = {
        (s.public_key_hash, s.message.installation_id) for s in submissions if s.message and _is_storable(s.message)
    }
    if not keys:
        return {}
    # Ordered, so that batches that share rows wait for each other instead of dead-locking.
    registrations = list(Registration.objects.select_for_update().filter(IsOneOf(keys)).order_by("pk"))
    # Not joined: who waited for a lock sees the registration as it is now, but a joined route as it was before. Its
    # generation would then not grow, and an old token's death would disable the new one.
    route_ids = [r.route_id for r in registrations if r.route_id]
    routes = {
        route.pk: route
        for route in Route.objects.select_for_update(no_key=True).filter(pk__in=route_ids).order_by("pk")
    }
    for registration in registrations:
        registration.route = routes[registration.route_id] if registration.route_id else None
    return {(bytes(r.public_key_hash), r.installation_id): r for r in registrations}


def _is_storable(message: RegistrationMessage) -> bool:
    """PostgreSQL's text holds any character but NUL, which no honest client sends."""
    return "\0" not in message.installation_id and "\0" not in message.apn_topic


def _take_in(batch: _Batch, submission: Submission) -> Outcome:
    message = submission.message
    if message is None or not _is_storable(message):
        return Outcome(Refusal.MALFORMED)
    registration = batch.registrations.get((submission.public_key_hash, message.installation_id))
    decision = decide(
        message,
        _what_is_known(registration, submission.content),
        grant_verified=submission.grant_verified,
        strict_version_check=settings.STRICT_VERSION_CHECK,
    )
    match decision:
        case Acceptance.REGISTER:
            _store(batch, submission, message, registration)
        case Acceptance.UNREGISTER:
            _remove(batch, submission, message, registration)
    return Outcome(decision)


def _what_is_known(registration: Registration | None, content: bytes) -> Known:
    if registration is None:
        return Known()
    return Known(registration.version, keyring().matches(Purpose.CONTENT, content, registration.content_digest))


def _store(
    batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration | None
) -> None:
    registration = registration or _create(batch, submission, message)
    kind = _what_changed(registration, message)
    _set_route(batch, registration, message)
    token = message.access_token.encode()
    registration.state = Registration.State.ACTIVE
    registration.access_token_encrypted = keyring().encrypt(Purpose.ACCESS_TOKEN, token)
    registration.access_token_digest = keyring().digest(Purpose.ACCESS_TOKEN, token)
    registration.pseudonym = registration.pseudonym or uuid4()
    for name in SETTINGS_FIELDS:
        value = getattr(message, name)
        setattr(registration, name, list(value) if isinstance(value, tuple) else value)
    _mark_changed(batch, submission, message, registration)
    _set_grant(batch, submission, message, registration)
    _record(batch, registration, kind)


def _create(batch: _Batch, submission: Submission, message: RegistrationMessage) -> Registration:
    key = (submission.public_key_hash, message.installation_id)
    registration = Registration(
        public_key_hash=key[0],
        installation_id=key[1],
        version=0,
        state=Registration.State.UNREGISTERED,
        pseudonym=None,
        created_at=batch.now,
    )
    batch.registrations[key] = batch.created[key] = registration
    return registration


def _what_changed(registration: Registration, message: RegistrationMessage) -> RegistrationEvent.Kind:
    route = registration.route
    if registration.state != Registration.State.ACTIVE or route is None:
        return RegistrationEvent.Kind.REGISTERED
    token = message.device_token.encode()
    same_token = keyring().matches(Purpose.DEVICE_TOKEN, token, route.device_token_digest)
    if not same_token or route.token_type != message.token_type:
        return RegistrationEvent.Kind.TOKEN_CHANGED
    stored = [_comparable(getattr(registration, name)) for name in SETTINGS_FIELDS]
    if stored != [_comparable(getattr(message, name)) for name in SETTINGS_FIELDS]:
        return RegistrationEvent.Kind.SETTINGS_CHANGED
    return RegistrationEvent.Kind.REFRESHED


def _comparable(value: bool | Iterable[bytes]) -> object:
    """The order of a list means nothing, and PostgreSQL hands out memoryviews."""
    return value if isinstance(value, bool) else {bytes(item) for item in value}


def _set_route(batch: _Batch, registration: Registration, message: RegistrationMessage) -> None:
    """Point the registration to its address; a registration also revives an address whose token had died."""
    if registration.route is None:
        registration.route = Route(generation=0, created_at=batch.now)
        batch.new_routes.append(registration.route)
    elif registration.route.pk:
        batch.changed_routes[registration.route.pk] = registration.route
    route, token = registration.route, message.device_token.encode()
    route.token_type = message.token_type
    route.apn_topic = message.apn_topic
    route.device_token_encrypted = keyring().encrypt(Purpose.DEVICE_TOKEN, token)
    route.device_token_digest = keyring().digest(Purpose.DEVICE_TOKEN, token)
    route.state, route.disabled_reason, route.disabled_at = Route.State.ACTIVE, "", None
    route.failing_since = None
    route.generation += 1


def _set_grant(batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration) -> None:
    batch.grants[submission.public_key_hash, message.installation_id] = Grant(
        registration=registration,
        server_public_key=batch.server_public_key,
        signature=message.grant,
        access_token_digest=registration.access_token_digest,
        granted_at=batch.now,
    )


def _remove(
    batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration | None
) -> None:
    """Forget all but key hash and version. Of an installation never seen, a tombstone stays: an older registration
    replayed later must not bring it to life.
    """
    registration = registration or _create(batch, submission, message)
    if registration.state == Registration.State.ACTIVE:
        _record(batch, registration, RegistrationEvent.Kind.UNREGISTERED)
    route, registration.route = registration.route, None
    registration.state = Registration.State.UNREGISTERED
    registration.access_token_encrypted = registration.access_token_digest = registration.pseudonym = None
    for name in SETTINGS_FIELDS:
        setattr(registration, name, type(getattr(registration, name))())
    _mark_changed(batch, submission, message, registration)
    batch.grants.pop((submission.public_key_hash, message.installation_id), None)
    if route:
        _remove_route(batch, route)


def _remove_route(batch: _Batch, route: Route) -> None:
    if route.pk is None:  # registered and unregistered within one batch
        batch.new_routes.remove(route)
        return
    batch.changed_routes.pop(route.pk, None)
    batch.removed_route_ids.add(route.pk)


def _mark_changed(
    batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration
) -> None:
    registration.version = message.version
    registration.content_digest = keyring().digest(Purpose.CONTENT, submission.content)
    registration.updated_at = batch.now
    key = (submission.public_key_hash, message.installation_id)
    if key not in batch.created:
        batch.changed[key] = registration


def _record(batch: _Batch, registration: Registration, kind: RegistrationEvent.Kind) -> None:
    route = registration.route
    assert route is not None  # noqa: S101 - an active registration has one
    assert registration.pseudonym is not None  # noqa: S101
    batch.events.append(
        RegistrationEvent(
            kind=kind,
            pseudonym=registration.pseudonym,
            token_type=route.token_type,
            apn_topic=route.apn_topic,
            at=batch.now,
        )
    )


def _write(batch: _Batch) -> None:
    """Every row of the batch in a handful of statements. An update is an upsert on rows that are locked: one statement
    for all of them, where bulk_update would build a CASE per column.
    """
    Route.objects.bulk_create(batch.new_routes)
    Route.objects.bulk_create(batch.changed_routes.values(), **_upsert(CHANGING_ROUTE_FIELDS))
    Registration.objects.bulk_create(batch.created.values())
    Registration.objects.bulk_create(batch.changed.values(), **_upsert(CHANGING_FIELDS))
    unregistered = [r.pk for r in batch.registrations.values() if r.state == Registration.State.UNREGISTERED]
    Grant.objects.filter(registration__in=unregistered).delete()
    Route.objects.filter(pk__in=batch.removed_route_ids).delete()
    Grant.objects.bulk_create(
        batch.grants.values(),
        update_conflicts=True,
        unique_fields=["registration", "server_public_key"],
        update_fields=["signature", "access_token_digest", "granted_at"],
    )
    RegistrationEvent.objects.bulk_create(batch.events)


def _upsert(fields: list[str]) -> dict[str, Any]:
    return {"update_conflicts": True, "unique_fields": ["id"], "update_fields": fields}
