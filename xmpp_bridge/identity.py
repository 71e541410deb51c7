"""The keys of this server for XMPP, made from its own: of client strings, of secrets, and of hashes in place of JIDs.

They do not rotate with the keys of database fields, because what an app was given must stay valid, and a device must be
found again by its hash. While the server's own key is being changed, what was made from either key is known, and what
is new is made from the first. See docs/backup.md, "Changing the server's key".
"""

import hashlib
import hmac
from functools import cache
from uuid import UUID

from django.conf import settings

from xmpp_bridge.codec.client_strings import ClientKeys

NAME_BYTES = 8


@cache
def client_keys() -> tuple[ClientKeys, ...]:
    """Return the keys that client strings of this server are known by, those that new ones are made with first."""
    return tuple(
        ClientKeys(_key(own, "name")[:NAME_BYTES], _key(own, "client strings 1"), _key(own, "node secrets"))
        for own in _server_keys()
    )


def keys_named(name: bytes | None) -> ClientKeys:
    """Return the keys of this name; without a name, or when they are known no more, those that are new."""
    return next((keys for keys in client_keys() if keys.name == name), client_keys()[0])


def device_keys(app: str, account: str, device_id: str) -> list[bytes]:
    """Return the hashes that recognise a device, that of a new one first. ``account`` is a bare JID."""
    return _hashes("devices", app, account, device_id)


def owner_keys(app: str, account: str) -> list[bytes]:
    """Return the hashes that recognise an account within an app, that of a new device first."""
    return _hashes("owners", app, account)


def canary_apps() -> list[str]:
    """Return the slugs of the canary's app, that of a new one first. Nobody else can name them."""
    return ["canary-" + hmac.digest(own, b"canary xmpp app", "sha256").hex()[:32] for own in _server_keys()]


def session_ids(node: str, sender: str) -> list[str]:
    """Return the ids of the session in which a client carries out a command, that of a new one first."""
    return [digest.hex()[:24] for digest in _hashes("sessions", node, sender)]


def route_tag(device_id: UUID) -> bytes:
    """Return the 8 bytes by which an app recognises its account, and under which wake-ups replace each other."""
    return hashlib.sha256(device_id.bytes).digest()[:8]


def _hashes(purpose: str, *parts: str) -> list[bytes]:
    text = b"\0".join(part.encode() for part in parts)
    return [hmac.digest(_key(own, purpose), text, "sha256") for own in _server_keys()]


def _server_keys() -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((settings.SERVER_PRIVATE_KEY, *settings.OTHER_SERVER_PRIVATE_KEYS)))


def _key(server_key: bytes, purpose: str) -> bytes:
    return hmac.digest(server_key, b"xmpp " + purpose.encode(), "sha256")
