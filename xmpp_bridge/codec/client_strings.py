"""What a device's app is given to hand on to its user's server, and that proves a push to be meant for the device.

    client string   b64url(version (1) ‖ route id (16) ‖ HMAC-SHA-256(key of the version, route id) (16))    Push 2.0
    node            b64url(route id (16))                                                                    XEP-0357
    secret          b64url(HMAC-SHA-256(key of secrets, route id) (18))

All of it can be made again from the route id, so that none of it is stored; and a made-up one is recognised before the
database is asked.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

MAC_BYTES = 16
SECRET_BYTES = 18
CLIENT_BYTES = 1 + 16 + MAC_BYTES


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys of client strings by version, the one that new strings are made with, and that of secrets."""

    by_version: Mapping[int, bytes] = field(repr=False)
    current_version: int
    of_secrets: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything that one device's app is given."""

    client: str = field(repr=False)
    node: str
    secret: str = field(repr=False)


def issue(route_id: UUID, keys: ClientKeys) -> Credentials:
    """Return what the app of this route is given, the same each time."""
    version = keys.current_version
    client = bytes([version]) + route_id.bytes + _mac(keys.by_version[version], route_id)
    return Credentials(_encode(client), _encode(route_id.bytes), _secret(route_id, keys))


def verify_client(client: str, keys: ClientKeys) -> UUID | None:
    """Return the route that a client string is of, or None for a string that we did not make."""
    data = _decode(client)
    if len(data) != CLIENT_BYTES or data[0] not in keys.by_version:
        return None
    route_id = UUID(bytes=data[1:17])
    return route_id if hmac.compare_digest(data[17:], _mac(keys.by_version[data[0]], route_id)) else None


def verify_node(node: str, secret: str, keys: ClientKeys) -> UUID | None:
    """Return the route that node and secret are of, or None when we did not make them together."""
    route_id = read_node(node)
    if route_id is None:
        return None
    return route_id if hmac.compare_digest(secret.encode(), _secret(route_id, keys).encode()) else None


def read_node(node: str) -> UUID | None:
    """Return the route that a node names, which proves nothing, or None for a text that is no node."""
    data = _decode(node)
    return UUID(bytes=data) if len(data) == 16 else None


def _mac(key: bytes, route_id: UUID) -> bytes:
    return hmac.digest(key, route_id.bytes, "sha256")[:MAC_BYTES]


def _secret(route_id: UUID, keys: ClientKeys) -> str:
    return _encode(hmac.digest(keys.of_secrets, route_id.bytes, "sha256")[:SECRET_BYTES])


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    """Return the bytes of a text that is exactly what `_encode` makes of them, or none."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
    return data if hmac.compare_digest(_encode(data).encode(), text.encode()) else b""
