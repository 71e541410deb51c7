"""The keys of this server for XMPP, made from its own: of client strings, of secrets, and of hashes in place of JIDs.

They do not rotate with the keys of database fields, because what an app was given must stay valid, and a device must be
found again by its hash.
"""

import hashlib
import hmac
from functools import cache
from uuid import UUID

from django.conf import settings

from xmpp_bridge.codec.client_strings import ClientKeys

CURRENT_VERSION = 1


@cache
def client_keys() -> ClientKeys:
    """Return the keys of client strings of this server."""
    return ClientKeys({CURRENT_VERSION: _key("client strings 1")}, CURRENT_VERSION, _key("node secrets"))


def device_key(app: str, account: str, device_id: str) -> bytes:
    """Return the hash that recognises a device. ``account`` is a bare JID."""
    return _hash("devices", app, account, device_id)


def owner_key(app: str, account: str) -> bytes:
    """Return the hash that recognises an account within an app."""
    return _hash("owners", app, account)


def route_tag(device_id: UUID) -> bytes:
    """Return the 8 bytes by which an app recognises its account, and under which wake-ups replace each other."""
    return hashlib.sha256(device_id.bytes).digest()[:8]


def _hash(purpose: str, *parts: str) -> bytes:
    return hmac.digest(_key(purpose), b"\0".join(part.encode() for part in parts), "sha256")


@cache
def _key(purpose: str) -> bytes:
    return hmac.digest(settings.SERVER_PRIVATE_KEY, b"xmpp " + purpose.encode(), "sha256")
