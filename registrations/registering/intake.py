"""Registering and unregistering: the use case for every decrypted REGISTRATION message.

It works on batches: one locking read, a pure decision per message, one write. Two batches with the same new
installation collide on its unique constraint, and the caller repeats the later one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import transaction

from kit.metrics.batches import count
from registrations import metrics
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.messages import RegistrationMessage
from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.registering.pairs import InstallationKey, IsOneOf
from registrations.registering.quotas import Capacity, Changes, VersionOf, capacity_for
from registrations.routes.routes import is_at, point
from registrations.rules import Acceptance, CheckAddress, Known, Refusal, check_device_token, decide
from registrations.upkeep import retention, stock

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
    *("version", "state", "is_forgettable", "route", "access_token_encrypted", "access_token_digest"),
    *SETTINGS_FIELDS,
    *("content_digest", "pseudonym", "updated_at"),
]

CHANGING_ROUTE_FIELDS = [
    *("gateway", "token_type", "app_topic", "address_encrypted", "address_digest", "state"),
    *("disabled_reason", "disabled_at", "generation", "failing_since"),
]


@dataclass(frozen=True, slots=True)
class Submission:
    """One registration as it arrived. ``content`` is the decrypted body, and ``message`` is None if that is malformed.

    ``server_public_key`` (33 bytes) is the identity of the server that the grant authorises, if there is a grant.
    """

    public_key_hash: bytes
    content: bytes = field(repr=False)
    message: RegistrationMessage | None
    grant_verified: bool
    server_public_key: bytes = b""

    @property
    def settled_content(self) -> bytes:
        """Return the content without the grant, which is equal for all identities of a server."""
        grant = self.message.grant if self.message else b""
        return self.content.replace(grant, b"", 1) if grant else self.content


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision about one submission, and the ids of the routes that it removed.

    A removed route is its own, or that of an installation whose place it takes.
    """

    decision: Acceptance | Refusal
    removed_route_ids: Sequence[int] = ()

    @property
    def is_accepted(self) -> bool:
        return isinstance(self.decision, Acceptance)


@dataclass(slots=True)
class _Batch:
    """The installations of a batch. They are changed in memory, and written together at the end."""

    registrations: dict[InstallationKey, Registration]
    changes: Changes
    bridge: str
    gateway: str
    check_address: CheckAddress
    now: datetime
    is_import: bool
    created: dict[InstallationKey, Registration] = field(default_factory=dict)
    changed: dict[InstallationKey, Registration] = field(default_factory=dict)
    new_routes: list[Route] = field(default_factory=list)
    changed_routes: dict[int, Route] = field(default_factory=dict)
    removed_route_ids: set[int] = field(default_factory=set)
    grants: dict[InstallationKey, Grant] = field(default_factory=dict)
    further_grants: list[Grant] = field(default_factory=list)  # of known registrations, for other identities
    regranted: set[int] = field(default_factory=set)  # registrations whose earlier grants are for another token
    events: list[RegistrationEvent] = field(default_factory=list)
    capacity: Capacity | None = None  # None for a batch without new installations, like most batches


def register(
    submissions: Sequence[Submission],
    *,
    bridge: str,
    gateway: str,
    check_address: CheckAddress = check_device_token,
    is_import: bool = False,
    now: datetime,
) -> list[Outcome]:
    """Decide about the submissions in order, store the accepted ones, and return the outcome of each.

    The device tokens of ``bridge`` are addresses at ``gateway``, and ``check_address`` refuses impossible ones. For an
    import by an operator, the limit of new installations per minute does not apply, and no later one replaces them.
    """
    with transaction.atomic():
        known = _lock_known(submissions)
        changes = Changes({key: registration.version for key, registration in known.items()}, now=now)
        batch = _Batch(known, changes, bridge, gateway, check_address, now, is_import)
        if new := _something_new(batch, submissions):
            batch.capacity = capacity_for(new, known.values(), bridge=bridge, is_paced=not is_import, now=now)
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
    # The rows are locked in one order, so that batches with common rows wait for each other and do not dead-lock.
    registrations = list(Registration.objects.select_for_update().filter(IsOneOf(keys)).order_by("pk"))
    # Routes are not joined. A transaction that has waited for a lock reads the present registration, but would read the
    # previous state of a joined route. The generation of the route would then not grow, and the death of an old token
    # would disable the new one.
    route_ids = [r.route_id for r in registrations if r.route_id]
    routes = {
        route.pk: route
        for route in Route.objects.select_for_update(no_key=True).filter(pk__in=route_ids).order_by("pk")
    }
    for registration in registrations:
        registration.route = routes[registration.route_id] if registration.route_id else None
    return {(bytes(r.public_key_hash), r.installation_id): r for r in registrations}


def _version_of(submission: Submission, message: RegistrationMessage, check_address: CheckAddress) -> VersionOf:
    """Return the installation and version that the quota counts.

    A submission that would be refused even for an unknown installation counts as version 0, which is never new.
    """
    verdict = _decide(message, Known(), check_address, is_granted=submission.grant_verified)
    version = 0 if isinstance(verdict, Refusal) else message.version
    return (submission.public_key_hash, message.installation_id), version


def _decide(
    message: RegistrationMessage, known: Known, check_address: CheckAddress, *, is_granted: bool
) -> Acceptance | Refusal:
    is_strict = settings.STRICT_VERSION_CHECK
    return decide(
        message, known, grant_verified=is_granted, strict_version_check=is_strict, check_address=check_address
    )


def _is_storable(message: RegistrationMessage) -> bool:
    """Return whether PostgreSQL can store the texts. It refuses only NUL, which no genuine client sends."""
    return "\0" not in message.installation_id and "\0" not in message.app_topic


def _take_in(batch: _Batch, submission: Submission) -> Outcome:
    message = submission.message
    if message is None or not _is_storable(message):
        return Outcome(Refusal.MALFORMED)
    registration = batch.registrations.get((submission.public_key_hash, message.installation_id))
    what_is_known = _what_is_known(registration, submission)
    decision = _decide(message, what_is_known, batch.check_address, is_granted=submission.grant_verified)
    if not batch.changes.take(*_version_of(submission, message, batch.check_address)):
        return Outcome(Refusal.TOO_MANY_CHANGES)
    refusal, removed = _find_place(batch, submission, registration, decision)
    if refusal:
        return Outcome(refusal, removed)
    match decision:
        case Acceptance.REGISTER:
            _store(batch, submission, message, registration)
        case Acceptance.UNREGISTER:
            removed += _remove(batch, submission, message, registration)
        case Acceptance.RETRANSMISSION if registration and registration.state == Registration.State.ACTIVE:
            batch.further_grants.append(_grant(batch, submission, message, registration))
            _renew(batch, submission, message, registration)
    return Outcome(decision, removed)


def _something_new(batch: _Batch, submissions: Iterable[Submission]) -> set[InstallationKey]:
    """Return the installations of the submissions that are not active at the moment."""
    active = {key for key, row in batch.registrations.items() if row.state == Registration.State.ACTIVE}
    named = {(each.public_key_hash, each.message.installation_id) for each in submissions if each.message}
    return named - active


def _find_place(
    batch: _Batch, submission: Submission, registration: Registration | None, decision: Acceptance | Refusal
) -> tuple[Refusal | None, list[int]]:
    """Count an accepted decision. Return the quota that it exceeds, if any, and the ids of routes that go for it."""
    is_active = registration is not None and registration.state == Registration.State.ACTIVE
    if batch.capacity is None:
        return None, []
    if is_active and decision is Acceptance.UNREGISTER:
        batch.capacity.leave(submission.public_key_hash)
    if is_active or decision is not Acceptance.REGISTER:
        return None, []
    refusal, removed = batch.capacity.admit(submission.public_key_hash)
    if refusal is Refusal.TOO_MANY_INSTALLATIONS and (dead := _end_dead(batch, batch.capacity, submission)):
        refusal, removed = batch.capacity.admit(submission.public_key_hash)
        removed += dead
    return refusal, removed


def _end_dead(batch: _Batch, capacity: Capacity, submission: Submission) -> list[int]:
    """Unregister the installation of the key whose route has been disabled for longest, and return its route's id.

    Installations with another submission in this batch are left alone.
    """
    public_key_hash = submission.public_key_hash
    named = [installation_id for key, installation_id in batch.registrations if key == public_key_hash]
    ended = retention.end_longest_dead(public_key_hash, but=named, now=batch.now)
    if ended:
        capacity.leave(public_key_hash)
    return ended


def _what_is_known(registration: Registration | None, submission: Submission) -> Known:
    if registration is None:
        return Known()
    # The digest is that of a content without its grant, so the grant has to be verified, unless there is none.
    has_good_grant = submission.grant_verified or not (submission.message and submission.message.grant)
    is_same = keyring().matches(Purpose.CONTENT, submission.settled_content, registration.content_digest)
    is_registered = registration.state == Registration.State.ACTIVE
    return Known(registration.version, is_same and has_good_grant, is_registered=is_registered)


def _store(
    batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration | None
) -> None:
    registration = registration or _create(batch, submission, message)
    kind = _what_changed(registration, message, batch.gateway)
    is_first_today = registration.pk is None or registration.updated_at.date() < batch.now.date()
    comes_back = registration.route is not None and registration.route.state == Route.State.DISABLED
    _set_route(batch, registration, message)
    token = message.access_token.encode()
    registration.state = Registration.State.ACTIVE
    registration.is_forgettable = False
    if registration.pk and not keyring().matches(Purpose.ACCESS_TOKEN, token, registration.access_token_digest):
        batch.regranted.add(registration.pk)
    registration.access_token_encrypted = keyring().encrypt(Purpose.ACCESS_TOKEN, token)
    registration.access_token_digest = keyring().digest(Purpose.ACCESS_TOKEN, token)
    registration.pseudonym = registration.pseudonym or uuid4()
    for name in SETTINGS_FIELDS:
        value = getattr(message, name)
        setattr(registration, name, list(value) if isinstance(value, tuple) else value)
    _mark_changed(batch, submission, message, registration)
    key = (submission.public_key_hash, message.installation_id)
    batch.grants[key] = _grant(batch, submission, message, registration)
    # Reports count active installations per day, so one refresh event per day is enough.
    if is_first_today or comes_back or kind is not RegistrationEvent.Kind.REFRESHED:
        _record(batch, registration, kind)


def _create(batch: _Batch, submission: Submission, message: RegistrationMessage) -> Registration:
    key = (submission.public_key_hash, message.installation_id)
    registration = Registration(
        public_key_hash=submission.public_key_hash,
        installation_id=message.installation_id,
        version=0,
        state=Registration.State.UNREGISTERED,
        is_forgettable=not batch.is_import,
        pseudonym=None,
        created_at=batch.now,
    )
    batch.registrations[key] = batch.created[key] = registration
    return registration


def _what_changed(registration: Registration, message: RegistrationMessage, gateway: str) -> RegistrationEvent.Kind:
    route = registration.route
    if registration.state != Registration.State.ACTIVE or route is None:
        return RegistrationEvent.Kind.REGISTERED
    is_same_address = is_at(route, message.token_type, message.app_topic, message.device_token.encode())
    if not is_same_address or route.gateway != gateway:
        return RegistrationEvent.Kind.TOKEN_CHANGED
    stored = [_comparable(getattr(registration, name)) for name in SETTINGS_FIELDS]
    if stored != [_comparable(getattr(message, name)) for name in SETTINGS_FIELDS]:
        return RegistrationEvent.Kind.SETTINGS_CHANGED
    return RegistrationEvent.Kind.REFRESHED


def _comparable(value: bool | Iterable[bytes]) -> object:
    """Return a comparable value of a setting. The order of a list is irrelevant, and Django may return memoryviews."""
    return value if isinstance(value, bool) else {bytes(item) for item in value}


def _set_route(batch: _Batch, registration: Registration, message: RegistrationMessage) -> None:
    """Set the address of the registration's route, which also enables a disabled route."""
    if registration.route is None:
        delivered = b"" if batch.is_import else None
        registration.route = Route(generation=0, bridge=batch.bridge, delivered_digest=delivered, created_at=batch.now)
        batch.new_routes.append(registration.route)
    elif registration.route.pk:
        batch.changed_routes[registration.route.pk] = registration.route
    point(
        registration.route,
        gateway=batch.gateway,
        token_type=message.token_type,
        app_topic=message.app_topic,
        address=message.device_token.encode(),
    )


def _grant(batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration) -> Grant:
    """Return the grant for the server identity to which the message was sent."""
    return Grant(
        registration=registration,
        server_public_key=submission.server_public_key,
        signature=message.grant,
        access_token_digest=registration.access_token_digest,
        granted_at=batch.now,
    )


def _remove(
    batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration | None
) -> list[int]:
    """Delete all data but key hash, installation id and version. Return the id of the removed route, if it was stored.

    An unknown installation also gets a tombstone, so that a replayed older registration stays refused.
    """
    registration = registration or _create(batch, submission, message)
    route = registration.route
    if registration.state == Registration.State.ACTIVE:
        _record(batch, registration, RegistrationEvent.Kind.UNREGISTERED)
        registration.is_forgettable = route is not None and route.delivered_digest is None
    registration.route = None
    registration.state = Registration.State.UNREGISTERED
    registration.access_token_encrypted = registration.access_token_digest = registration.pseudonym = None
    for name in SETTINGS_FIELDS:
        setattr(registration, name, type(getattr(registration, name))())
    _mark_changed(batch, submission, message, registration)
    batch.grants.pop((submission.public_key_hash, message.installation_id), None)
    if route:
        _remove_route(batch, route)
    return [route.pk] if route and route.pk else []


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
    registration.content_digest = keyring().digest(Purpose.CONTENT, submission.settled_content)
    registration.updated_at = batch.now
    key = (submission.public_key_hash, message.installation_id)
    if key not in batch.created:
        batch.changed[key] = registration


def _renew(batch: _Batch, submission: Submission, message: RegistrationMessage, registration: Registration) -> None:
    """Update the time of a repeated registration, once a day, so that it does not expire."""
    if registration.updated_at.date() < batch.now.date():
        registration.updated_at = batch.now
        batch.changed[submission.public_key_hash, message.installation_id] = registration


def _record(batch: _Batch, registration: Registration, kind: RegistrationEvent.Kind) -> None:
    route = registration.route
    assert route is not None  # noqa: S101 - an active registration has one
    assert registration.pseudonym is not None  # noqa: S101
    batch.events.append(RegistrationEvent.about(route, kind, pseudonym=registration.pseudonym, at=batch.now))


def _write(batch: _Batch) -> None:
    """Write all rows of the batch in a few statements.

    Updates are upserts of locked rows. That is one statement for all rows, where bulk_update would build a CASE per
    column.
    """
    Route.objects.bulk_create(batch.new_routes)
    Route.objects.bulk_create(batch.changed_routes.values(), **_upsert(CHANGING_ROUTE_FIELDS))
    # Sorted for the same reason as above, because two workers may have received the same messages.
    Registration.objects.bulk_create([registration for _, registration in sorted(batch.created.items())])
    Registration.objects.bulk_create(batch.changed.values(), **_upsert(CHANGING_FIELDS))
    unregistered = [r.pk for r in batch.registrations.values() if r.state == Registration.State.UNREGISTERED]
    Grant.objects.filter(registration__in=[*unregistered, *batch.regranted]).delete()
    Route.objects.filter(pk__in=batch.removed_route_ids).delete()
    Grant.objects.bulk_create(
        batch.grants.values(),
        update_conflicts=True,
        unique_fields=["registration", "server_public_key"],
        update_fields=["signature", "access_token_digest", "granted_at"],
    )
    Grant.objects.bulk_create(batch.further_grants, ignore_conflicts=True)
    RegistrationEvent.objects.bulk_create(batch.events)
    retention.end_replaced(batch.capacity.replaced if batch.capacity else [], now=batch.now)
    stock.forget_oldest([r.pk for r in batch.registrations.values() if r.is_forgettable])


def _upsert(fields: list[str]) -> dict[str, Any]:
    return {"update_conflicts": True, "unique_fields": ["id"], "update_fields": fields}
