"""Credentials of a device, which its app passes to its user's server, and which prove that a push is for the device.

    client string   b64url(version (1) ‖ device id (16) ‖ HMAC-SHA-256(key of client strings, device id) (16))  Push 2.0
    node            b64url(device id (16))                                                                      XEP-0357
    secret          b64url(HMAC-SHA-256(key of secrets, device id) (18))                                        XEP-0357

The device id is the UUID of the device's row, and not the id that its app sends. All credentials are computed from it,
so none is stored, and a forged one is recognised without a database query. While the server's key is being changed,
credentials made with the old or the new key are valid.
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


def issue(device_id: UUID, keys: ClientKeys) -> Credentials:
    """Return the credentials of a device. They are the same each time."""
    client = bytes([VERSION]) + device_id.bytes + _mac(device_id, keys)
    return Credentials(_encode(client), _encode(device_id.bytes), _secret(device_id, keys))


def verify_client(client: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the device that a client string names, or None if none of the known keys made the string."""
    data = _decode(client)
    if len(data) != CLIENT_BYTES or data[0] != VERSION:
        return None
    device_id = UUID(bytes=data[1:17])
    return device_id if any(hmac.compare_digest(data[17:], _mac(device_id, keys)) for keys in known) else None


def verify_node(node: str, secret: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the device that a node names, or None if none of the known keys made its secret."""
    device_id, given = read_node(node), secret.encode()
    if device_id is None:
        return None
    return device_id if any(hmac.compare_digest(given, _secret(device_id, keys).encode()) for keys in known) else None


def read_node(node: str) -> UUID | None:
    """Return the id of the device that a node names, or None for a text that is no node.

    A node alone proves nothing: anybody can make one up.
    """
    data = _decode(node)
    return UUID(bytes=data) if len(data) == 16 else None


def _mac(device_id: UUID, keys: ClientKeys) -> bytes:
    return hmac.digest(keys.of_clients, device_id.bytes, "sha256")[:MAC_BYTES]


def _secret(device_id: UUID, keys: ClientKeys) -> str:
    return _encode(hmac.digest(keys.of_secrets, device_id.bytes, "sha256")[:SECRET_BYTES])


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    """Return the bytes that `_encode` turns into exactly this text, or no bytes if there are none."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
    return data if hmac.compare_digest(_encode(data).encode(), text.encode()) else b""
