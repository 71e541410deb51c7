"""Pointing a route to an address, which is the same for whatever front door an address comes from."""

from registrations.encryption import Purpose
from registrations.keyring import keyring
from registrations.messages import TokenType
from registrations.models import Route

# What tells addresses apart at Apple and nowhere else: the same token in another app is another address.
_AT_APPLE = b"%d %s\0"


def identity_of(token_type: int, apn_topic: str, address: bytes) -> bytes:
    """Return what the digest of an address is made of: the address, and its app where a token is one of an app.

    A delivery to a token in one app proves nothing about the same token in another.
    """
    if token_type != TokenType.APN:
        return address
    return _AT_APPLE % (len(apn_topic.encode()), apn_topic.encode()) + address


def is_at(route: Route, token_type: int, apn_topic: str, address: bytes) -> bool:
    """Return whether a route leads to this address already."""
    identity = identity_of(token_type, apn_topic, address)
    return route.token_type == token_type and keyring().matches(Purpose.ADDRESS, identity, route.address_digest)


def point(route: Route, *, gateway: str, token_type: int, apn_topic: str, address: bytes) -> None:
    """Give a route this address. This also revives one whose token had died. The caller stores it."""
    route.gateway = gateway
    route.token_type = token_type
    route.apn_topic = apn_topic
    route.address_encrypted = keyring().encrypt(Purpose.ADDRESS, address)
    route.address_digest = keyring().digest(Purpose.ADDRESS, identity_of(token_type, apn_topic, address))
    route.state = Route.State.ACTIVE
    route.disabled_reason = ""
    route.disabled_at = None
    route.failing_since = None
    route.generation += 1
