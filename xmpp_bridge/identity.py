"""Keys of the XMPP bridge, derived from the server's own key: of client strings, of secrets, and of hashes of JIDs.

They do not rotate with the keys of database fields: the credentials of an app must stay valid, and a device must be
found by its hash. While the server's own key is being changed, values derived from the old or the new key are
recognised. New values are derived from the new key. See docs/backup.md, "Changing the server's key".
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


def route_tag(device_id: UUID) -> bytes:
    """Return the 8 bytes by which an app recognises its account, and which are the collapse id of wake-ups."""
    return hashlib.sha256(device_id.bytes).digest()[:8]


def _hashes(purpose: str, *parts: str) -> list[bytes]:
    text = b"\0".join(part.encode() for part in parts)
    return [hmac.digest(_key(own, purpose), text, "sha256") for own in _server_keys()]


def _server_keys() -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((settings.SERVER_PRIVATE_KEY, *settings.OTHER_SERVER_PRIVATE_KEYS)))


def _key(server_key: bytes, purpose: str) -> bytes:
    return hmac.digest(server_key, b"xmpp " + purpose.encode(), "sha256")
