import secrets
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone

from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.messages import TokenType
from registrations.models import Grant, Registration, RegistrationEvent, Route, TopicKey
from registrations.routes.routes import identity_of
from tests.factories.tokens import apn_token, firebase_token


def make_route(
    *,
    device_token: str = "",
    token_type: int = TokenType.FIREBASE,
    gateway: str = "gorush",
    at: datetime | None = None,
    **fields: Any,
) -> Route:
    """Make an address. With ``last_success_at`` it is proven, unless ``delivered_digest`` differs from its digest."""
    token = (device_token or (apn_token() if token_type == TokenType.APN else firebase_token())).encode()
    identity = identity_of(token_type, fields.get("app_topic", ""), token)
    digest = keyring().digest(Purpose.ADDRESS, identity)
    defaults: dict[str, Any] = {
        "bridge": "waku",
        "address_encrypted": keyring().encrypt(Purpose.ADDRESS, token),
        "address_digest": digest,
        "delivered_digest": digest if fields.get("last_success_at") else None,
    }
    return Route.objects.create(
        gateway=gateway, token_type=token_type, created_at=at or timezone.now(), **defaults | fields
    )


def make_registration(
    *,
    public_key_hash: bytes = b"",
    installation_id: str = "",
    access_token: str = "",
    device_token: str = "",
    at: datetime | None = None,
    **fields: Any,
) -> Registration:
    """Make an active registration with a route of its own. With ``route=None`` and another ``state`` it is a
    tombstone.
    """
    at = at or timezone.now()
    token = (access_token or str(uuid4())).encode()
    if "route" not in fields:
        fields["route"] = make_route(device_token=device_token, at=at)
    defaults: dict[str, Any] = {
        "version": 1,
        "state": Registration.State.ACTIVE,
        "enabled": True,
        "access_token_encrypted": keyring().encrypt(Purpose.ACCESS_TOKEN, token),
        "access_token_digest": keyring().digest(Purpose.ACCESS_TOKEN, token),
        "content_digest": keyring().digest(Purpose.CONTENT, secrets.token_bytes(64)),
    }
    return Registration.objects.create(
        public_key_hash=public_key_hash or secrets.token_bytes(64),
        installation_id=installation_id or str(uuid4()),
        created_at=at,
        updated_at=at,
        **defaults | fields,
    )


def make_grant(registration: Registration | None = None, **fields: Any) -> Grant:
    registration = registration or make_registration()
    defaults: dict[str, Any] = {
        "server_public_key": b"\x02" + secrets.token_bytes(32),
        "signature": secrets.token_bytes(65),
        "access_token_digest": registration.access_token_digest,
        "granted_at": registration.updated_at,
    }
    return Grant.objects.create(registration=registration, **defaults | fields)


def make_event(*, pseudonym: UUID | None = None, at: datetime | None = None, **fields: Any) -> RegistrationEvent:
    defaults: dict[str, Any] = {
        "kind": RegistrationEvent.Kind.REGISTERED,
        "token_type": TokenType.FIREBASE,
        "bridge": "waku",
    }
    return RegistrationEvent.objects.create(
        pseudonym=pseudonym or uuid4(), at=at or timezone.now(), **defaults | fields
    )


def make_topic_key(*, public_key_hash: bytes = b"", key: bytes = b"", **fields: Any) -> TopicKey:
    return TopicKey.objects.create(
        name=(public_key_hash or secrets.token_bytes(64)).hex(),
        topic=secrets.randbits(32),
        key_encrypted=keyring().encrypt(Purpose.TOPIC_KEY, key or secrets.token_bytes(32)),
        created_at=timezone.now(),
        **fields,
    )
