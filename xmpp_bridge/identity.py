"""Keys of the XMPP bridge, derived from the server's own key, and what is made with them: credentials, hashes of JIDs.

They do not rotate with the keys of database fields: the credentials of an app must stay valid, and a device must be
found by its hash. While the server's own key is being changed, values derived from the old or the new key are
recognised. New values are derived from the new key. See docs/backup.md, "Changing the server's key".

An app passes the credentials of its device to its user's server. They prove that a push is for the device:

    client string   b64url(version (1) ‖ device id (16) ‖ HMAC-SHA-256(key of client strings, device id) (16))  Push 2.0
    node            b64url(device id (16))                                                                      XEP-0357
    secret          b64url(HMAC-SHA-256(key of secrets, device id) (18))                                        XEP-0357

The device id is the UUID of the device's row, and not the id that its app sends. All credentials are computed from it,
so none is stored, and a forged one is recognised without a database query.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from uuid import UUID

from django.conf import settings

VERSION = 1  # of the format
MAC_BYTES = 16
SECRET_BYTES = 18
CLIENT_BYTES = 1 + 16 + MAC_BYTES
NAME_BYTES = 8


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


@cache
def client_keys() -> tuple[ClientKeys, ...]:
    """Return the keys that verify credentials of this server. The first are those that make new ones."""
    return tuple(
        ClientKeys(_key(own, "name")[:NAME_BYTES], _key(own, "client strings 1"), _key(own, "node secrets"))
        for own in _server_keys()
    )


def keys_named(name: bytes | None) -> ClientKeys:
    """Return the keys of this name, or the newest keys without a name or for an unknown one."""
    return next((keys for keys in client_keys() if keys.name == name), client_keys()[0])


def device_keys(app: str, account: str, device_id: str) -> list[bytes]:
    """Return the hashes that recognise a device, first the one to store. ``account`` is a bare JID."""
    return _hashes("devices", app, account, device_id)


def owner_keys(app: str, account: str) -> list[bytes]:
    """Return the hashes that recognise an account within an app, first the one to store. ``account`` is a bare JID."""
    return _hashes("owners", app, account)


def canary_apps() -> list[str]:
    """Return the slugs of the canary's app, first the one for a new app. Nobody else can guess them."""
    return ["canary-" + hmac.digest(own, b"canary xmpp app", "sha256").hex()[:32] for own in _server_keys()]


def session_ids(node: str, sender: str) -> list[str]:
    """Return the valid ids of a client's session for a command, first the one for a new session."""
    return [digest.hex()[:24] for digest in _hashes("sessions", node, sender)]


def _hashes(purpose: str, *parts: str) -> list[bytes]:
    text = b"\0".join(part.encode() for part in parts)
    return [hmac.digest(_key(own, purpose), text, "sha256") for own in _server_keys()]


def _server_keys() -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((settings.SERVER_PRIVATE_KEY, *settings.OTHER_SERVER_PRIVATE_KEYS)))


def _key(server_key: bytes, purpose: str) -> bytes:
    return hmac.digest(server_key, b"xmpp " + purpose.encode(), "sha256")


def issue(device_id: UUID, keys: ClientKeys) -> Credentials:
    """Return the credentials of a device. They are the same each time."""
    mac = hmac.digest(keys.of_clients, device_id.bytes, "sha256")[:MAC_BYTES]
    secret = hmac.digest(keys.of_secrets, device_id.bytes, "sha256")[:SECRET_BYTES]
    return Credentials(_encode(bytes([VERSION]) + device_id.bytes + mac), _encode(device_id.bytes), _encode(secret))


def verify_client(client: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the device that a client string names, or None if none of the known keys made the string."""
    data = _decode(client)
    if len(data) != CLIENT_BYTES:
        return None
    device_id = UUID(bytes=data[1:17])
    return device_id if any(_is_same(client, issue(device_id, keys).client) for keys in known) else None


def verify_node(node: str, secret: str, known: Iterable[ClientKeys]) -> UUID | None:
    """Return the id of the device that a node names, or None if none of the known keys made its secret."""
    device_id = read_node(node)
    if device_id is None:
        return None
    return device_id if any(_is_same(secret, issue(device_id, keys).secret) for keys in known) else None


def read_node(node: str) -> UUID | None:
    """Return the id of the device that a node names, or None for a text that is no node.

    A node alone proves nothing: anybody can make one up.
    """
    data = _decode(node)
    return UUID(bytes=data) if len(data) == 16 and _encode(data) == node else None


def _is_same(given: str, own: str) -> bool:
    return hmac.compare_digest(given.encode(), own.encode())


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""
