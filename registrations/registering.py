"""Registering and unregistering: the use case for every decrypted REGISTRATION message.

It works on batches: one locking read, a pure decision per message, one write. Two batches with the same new
installation collide on its unique constraint, and the caller repeats the later one.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from kit.telemetry import count
from registrations import metrics, retention
from registrations.encryption import Purpose, keyring
from registrations.messages import InstallationKey, RegistrationMessage
from registrations.models import Grant, Registration, RegistrationEvent, Route
from registrations.quotas import Capacity, capacity_for, forget_oldest, take_change
from registrations.rules import Acceptance, CheckAddress, Known, Refusal, check_device_token, check_token_type, decide

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
State = Registration.State
Kind = RegistrationEvent.Kind


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


def register(
    submissions: Sequence[Submission],
    *,
    bridge: str,
    gateway: str,
    check_address: CheckAddress | None = None,
    is_import: bool = False,
    now: datetime,
) -> list[Outcome]:
    """Decide about the submissions in order, store the accepted ones, and return the outcome of each.

    The device tokens of ``bridge`` are addresses at ``gateway``, and ``check_address`` refuses impossible ones. Without
    it, Apple or Firebase must be able to have made a token, unless the operator has switched this check off. For an
    import by an operator, the limit of new installations per minute does not apply, and no later one replaces them.
    """
    check_address = check_address or (check_device_token if settings.CHECK_DEVICE_TOKENS else check_token_type)
    with transaction.atomic():
        known = _lock_known({_key(s) for s in submissions if _is_storable(s.message)})
        batch = _Batch(known, bridge, gateway, check_address, now, is_import)
        active = {key for key, registration in known.items() if registration.state == State.ACTIVE}
        if new := {_key(s) for s in submissions if s.message} - active:
            batch.capacity = capacity_for(new, known.values(), bridge=bridge, is_paced=not is_import, now=now)
        outcomes = [batch.take_in(submission) for submission in submissions]
        batch.write()
        count(metrics.REGISTRATIONS, ((outcome.decision,) for outcome in outcomes))
        count(metrics.REGISTRATION_EVENTS, ((event.kind,) for event in batch.events))
    return outcomes


def _key(submission: Submission) -> InstallationKey:
    return submission.public_key_hash, submission.message.installation_id if submission.message else ""


def _is_storable(message: RegistrationMessage | None) -> bool:
    """Return whether PostgreSQL can store the texts. It refuses only NUL, which no genuine client sends."""
    return message is not None and "\0" not in message.installation_id + message.app_topic


def named(keys: Iterable[InstallationKey]) -> RawSQL:
    """Return the condition that a registration belongs to one of these installations.

    Two separate IN conditions would match all combinations: for a hundred keys with the same hundred installation ids,
    PostgreSQL would read ten thousand rows with all their lists.
    """
    hashes, installations = zip(*keys, strict=True)
    sql = "(public_key_hash, installation_id) IN (SELECT * FROM unnest(%s::bytea[], %s::text[]))"
    return RawSQL(sql, [list(hashes), list(installations)], BooleanField())  # noqa: S611 - a constant


def _lock_known(keys: set[InstallationKey]) -> dict[InstallationKey, Registration]:
    if not keys:
        return {}
    # The rows are locked in one order, so that batches with common rows wait for each other and do not dead-lock.
    registrations = list(Registration.objects.select_for_update().filter(named(keys)).order_by("pk"))
    # Routes are not joined. A transaction that has waited for a lock reads the present registration, but would read the
    # previous state of a joined route. The generation of the route would then not grow, and the death of an old token
    # would disable the new one.
    route_ids = [r.route_id for r in registrations if r.route_id]
    routes = Route.objects.select_for_update(no_key=True).order_by("pk").in_bulk(route_ids)
    for registration in registrations:
        registration.route = routes[registration.route_id] if registration.route_id else None
    return {(r.public_key_hash, r.installation_id): r for r in registrations}


@dataclass(slots=True)
class _Batch:
    """The installations of a batch. They are changed in memory, and written together at the end."""

    registrations: dict[InstallationKey, Registration]
    bridge: str
    gateway: str
    check_address: CheckAddress
    now: datetime
    is_import: bool
    changed: dict[InstallationKey, Registration] = field(default_factory=dict)
    routes: dict[InstallationKey, Route] = field(default_factory=dict)  # with a new address
    removed_route_ids: set[int] = field(default_factory=set)
    grants: dict[InstallationKey, Grant] = field(default_factory=dict)
    further_grants: list[Grant] = field(default_factory=list)  # of known registrations, for other identities
    regranted: set[int] = field(default_factory=set)  # registrations whose earlier grants are for another token
    events: list[RegistrationEvent] = field(default_factory=list)
    capacity: Capacity | None = None  # None for a batch without new installations, like most batches

    def take_in(self, submission: Submission) -> Outcome:
        message = submission.message
        if message is None or not _is_storable(message):
            return Outcome(Refusal.MALFORMED)
        registration = self.registrations.get(_key(submission))
        known = _what_is_known(registration, submission)
        decision = decide(
            message,
            known,
            grant_verified=submission.grant_verified,
            strict_version_check=settings.STRICT_VERSION_CHECK,
            check_address=self.check_address,
        )
        is_newer = isinstance(decision, Acceptance) and message.version > known.version
        if not take_change(_key(submission), is_newer=is_newer, now=self.now):
            return Outcome(Refusal.TOO_MANY_CHANGES)
        refusal, removed = self._find_place(submission, registration, decision)
        if refusal:
            return Outcome(refusal, removed)
        match decision:
            case Acceptance.REGISTER:
                self._store(submission, message, registration or self._create(submission))
            case Acceptance.UNREGISTER:
                removed += self._remove(submission, message, registration or self._create(submission))
            case Acceptance.RETRANSMISSION if registration and registration.state == State.ACTIVE:
                self.further_grants.append(self._grant(submission, message, registration))
                if registration.updated_at.date() < self.now.date():  # once a day, so that it does not expire
                    registration.updated_at = self.now
                    self.changed[_key(submission)] = registration
        return Outcome(decision, removed)

    def _find_place(
        self, submission: Submission, registration: Registration | None, decision: Acceptance | Refusal
    ) -> tuple[Refusal | None, list[int]]:
        """Count an accepted decision. Return the exceeded quota, if any, and the ids of routes that go for it."""
        key_hash = submission.public_key_hash
        is_active = registration is not None and registration.state == State.ACTIVE
        if self.capacity is None:
            return None, []
        if is_active and decision is Acceptance.UNREGISTER:
            self.capacity.leave(key_hash)
        if is_active or decision is not Acceptance.REGISTER:
            return None, []
        refusal, removed = self.capacity.admit(key_hash)
        if refusal is Refusal.TOO_MANY_INSTALLATIONS:
            of_batch = [installation_id for key, installation_id in self.registrations if key == key_hash]
            if dead := retention.end_longest_dead(key_hash, but=of_batch, now=self.now):
                self.capacity.leave(key_hash)
                refusal, removed = self.capacity.admit(key_hash)
                removed += dead
        return refusal, removed

    def _create(self, submission: Submission) -> Registration:
        public_key_hash, installation_id = key = _key(submission)
        registration = self.registrations[key] = Registration(
            public_key_hash=public_key_hash,
            installation_id=installation_id,
            version=0,
            state=State.UNREGISTERED,
            is_forgettable=not self.is_import,
            pseudonym=None,
            created_at=self.now,
        )
        return registration

    def _store(self, submission: Submission, message: RegistrationMessage, registration: Registration) -> None:
        kind = self._what_changed(registration, message)
        is_first_today = registration.pk is None or registration.updated_at.date() < self.now.date()
        comes_back = registration.route is not None and registration.route.state == Route.State.DISABLED
        self._set_route(submission, message, registration)
        token = message.access_token.encode()
        registration.state = State.ACTIVE
        registration.is_forgettable = False
        if registration.pk and not keyring().matches(Purpose.ACCESS_TOKEN, token, registration.access_token_digest):
            self.regranted.add(registration.pk)
        registration.access_token_encrypted = keyring().encrypt(Purpose.ACCESS_TOKEN, token)
        registration.access_token_digest = keyring().digest(Purpose.ACCESS_TOKEN, token)
        registration.pseudonym = registration.pseudonym or uuid4()
        for name in SETTINGS_FIELDS:
            value = getattr(message, name)
            setattr(registration, name, list(value) if isinstance(value, tuple) else value)
        self._mark_changed(submission, message, registration)
        self.grants[_key(submission)] = self._grant(submission, message, registration)
        # Reports count active installations per day, so one refresh event per day is enough.
        if is_first_today or comes_back or kind is not Kind.REFRESHED:
            self._record(registration, kind)

    def _what_changed(self, registration: Registration, message: RegistrationMessage) -> Kind:
        route = registration.route
        if registration.state != State.ACTIVE or route is None:
            return Kind.REGISTERED
        is_same_address = route.is_at(message.token_type, message.app_topic, message.device_token.encode())
        if not is_same_address or route.gateway != self.gateway:
            return Kind.TOKEN_CHANGED
        is_same = all(_are_equal(getattr(registration, name), getattr(message, name)) for name in SETTINGS_FIELDS)
        return Kind.REFRESHED if is_same else Kind.SETTINGS_CHANGED

    def _set_route(self, submission: Submission, message: RegistrationMessage, registration: Registration) -> None:
        """Set the address of the registration's route, which also enables a disabled route."""
        if registration.route is None:
            delivered = b"" if self.is_import else None
            route = Route(generation=0, bridge=self.bridge, delivered_digest=delivered, created_at=self.now)
            registration.route = route
        self.routes[_key(submission)] = registration.route
        address = message.device_token.encode()
        registration.route.set_address(self.gateway, message.token_type, message.app_topic, address)

    def _grant(self, submission: Submission, message: RegistrationMessage, registration: Registration) -> Grant:
        """Return the grant for the server identity to which the message was sent."""
        return Grant(
            registration=registration,
            server_public_key=submission.server_public_key,
            signature=message.grant,
            access_token_digest=registration.access_token_digest,
            granted_at=self.now,
        )

    def _remove(self, submission: Submission, message: RegistrationMessage, registration: Registration) -> list[int]:
        """Delete all data but key hash, installation id and version. Return the id of the removed route, if stored.

        An unknown installation also gets a tombstone, so that a replayed older registration stays refused.
        """
        route = registration.route
        if registration.state == State.ACTIVE:
            self._record(registration, Kind.UNREGISTERED)
            registration.is_forgettable = route is not None and route.delivered_digest is None
        registration.route = None
        registration.state = State.UNREGISTERED
        registration.access_token_encrypted = registration.access_token_digest = registration.pseudonym = None
        for name in SETTINGS_FIELDS:
            setattr(registration, name, type(getattr(registration, name))())
        self._mark_changed(submission, message, registration)
        self.grants.pop(_key(submission), None)
        self.routes.pop(_key(submission), None)
        removed = [route.pk] if route and route.pk else []
        self.removed_route_ids.update(removed)
        return removed

    def _mark_changed(self, submission: Submission, message: RegistrationMessage, registration: Registration) -> None:
        registration.version = message.version
        registration.content_digest = keyring().digest(Purpose.CONTENT, submission.settled_content)
        registration.updated_at = self.now
        self.changed[_key(submission)] = registration

    def _record(self, registration: Registration, kind: Kind) -> None:
        route, pseudonym = registration.route, registration.pseudonym
        assert route is not None and pseudonym is not None  # noqa: S101, PT018 - an active registration has both
        self.events.append(RegistrationEvent.about(route, kind, pseudonym=pseudonym, at=self.now))

    def write(self) -> None:
        """Write all rows of the batch in a few statements.

        Updates are upserts of locked rows. That is one statement for all rows, where bulk_update would build a CASE per
        column.
        """
        _write_all(Route, self.routes.values(), CHANGING_ROUTE_FIELDS)
        # In one order, as in locking: two workers may have received the same messages, and must not dead-lock.
        _write_all(Registration, [registration for _, registration in sorted(self.changed.items())], CHANGING_FIELDS)
        unregistered = [r.pk for r in self.registrations.values() if r.state == State.UNREGISTERED]
        Grant.objects.filter(registration__in=[*unregistered, *self.regranted]).delete()
        Route.objects.filter(pk__in=self.removed_route_ids).delete()
        Grant.objects.bulk_create(
            self.grants.values(),
            update_conflicts=True,
            unique_fields=["registration", "server_public_key"],
            update_fields=["signature", "access_token_digest", "granted_at"],
        )
        Grant.objects.bulk_create(self.further_grants, ignore_conflicts=True)
        RegistrationEvent.objects.bulk_create(self.events)
        retention.end_replaced(self.capacity.replaced if self.capacity else [], now=self.now)
        forget_oldest([r.pk for r in self.registrations.values() if r.is_forgettable])


def _what_is_known(registration: Registration | None, submission: Submission) -> Known:
    if registration is None:
        return Known()
    # The digest is that of a content without its grant, so the grant has to be verified, unless there is none.
    has_good_grant = submission.grant_verified or not (submission.message and submission.message.grant)
    is_same = keyring().matches(Purpose.CONTENT, submission.settled_content, registration.content_digest)
    is_registered = registration.state == State.ACTIVE
    return Known(registration.version, is_same and has_good_grant, is_registered=is_registered)


def _are_equal(stored: bool | Iterable[bytes], received: bool | Iterable[bytes]) -> bool:
    """Return whether two values of a setting are equal. The order of a list is irrelevant."""
    if isinstance(stored, bool) or isinstance(received, bool):
        return stored == received
    return set(stored) == set(received)


def _write_all(model: type[Route | Registration], rows: Collection[Any], fields: list[str]) -> None:
    model.objects.bulk_create([row for row in rows if row.pk is None])
    known = [row for row in rows if row.pk is not None]
    model.objects.bulk_create(known, update_conflicts=True, unique_fields=["id"], update_fields=fields)
