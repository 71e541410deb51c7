"""Credentials of a device, which its app passes to its user's server, and which prove that a push is for the device.

    client string   b64url(version (1) ‖ route id (16) ‖ HMAC-SHA-256(key of client strings, route id) (16))  Push 2.0
    node            b64url(route id (16))                                                                     XEP-0357
    secret          b64url(HMAC-SHA-256(key of secrets, route id) (18))

All of them are computed from the route id, so none is stored, and a forged one is recognised without a database query.
While the server's key is being changed, credentials made with the old or the new key are valid.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

VERSION = 1  # of the format
MAC_BYTES = 16
SECRET_BYTES = 18
CLIENT_BYTES = 1 + 16 + MAC_BYTES


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys of client strings and of secrets, and a name of the pair from which neither key can be computed."""

    name: bytes
    of_clients: bytes = field(repr=False)
    of_secrets: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one device."""

    client: str = field(repr=False)
    node: str
    secret: str = field(repr=False)


def issue(route_id: UUID, keys: ClientKeys) -> Credentials:
    """Return the credentials of a route. They are the same each time."""
    client = bytes([VERSION]) + route_id.bytes + _mac(route_id, keys)
    return Credentials(_encode(client), _encode(route_id.bytes), _secret(route_id, keys))


def verify_client(client: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the route that a client string names, or None if none of the known keys made the string."""
    data = _decode(client)
    if len(data) != CLIENT_BYTES or data[0] != VERSION:
        return None
    route_id = UUID(bytes=data[1:17])
    return route_id if any(hmac.compare_digest(data[17:], _mac(route_id, keys)) for keys in known) else None


def verify_node(node: str, secret: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the route that a node names, or None if none of the known keys made its secret."""
    route_id, given = read_node(node), secret.encode()
    if route_id is None:
        return None
    return route_id if any(hmac.compare_digest(given, _secret(route_id, keys).encode()) for keys in known) else None


def read_node(node: str) -> UUID | None:
    """Return the id of the route that a node names, or None for a text that is no node.

    A node alone proves nothing: anybody can make one up.
    """
    data = _decode(node)
    return UUID(bytes=data) if len(data) == 16 else None


def _mac(route_id: UUID, keys: ClientKeys) -> bytes:
    return hmac.digest(keys.of_clients, route_id.bytes, "sha256")[:MAC_BYTES]


def _secret(route_id: UUID, keys: ClientKeys) -> str:
    return _encode(hmac.digest(keys.of_secrets, route_id.bytes, "sha256")[:SECRET_BYTES])


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    """Return the bytes that `_encode` turns into exactly this text, or no bytes if there are none."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
    return data if hmac.compare_digest(_encode(data).encode(), text.encode()) else b""
