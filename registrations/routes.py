"""Pointing a route to an address, which is the same for whatever front door an address comes from."""

from registrations.encryption import Purpose
from registrations.keyring import keyring
from registrations.models import Route


def point(route: Route, *, gateway: str, token_type: int, apn_topic: str, address: bytes) -> None:
    """Give a route this address. This also revives one whose token had died. The caller stores it."""
    route.gateway = gateway
    route.token_type = token_type
    route.apn_topic = apn_topic
    route.address_encrypted = keyring().encrypt(Purpose.ADDRESS, address)
    route.address_digest = keyring().digest(Purpose.ADDRESS, address)
    route.state = Route.State.ACTIVE
    route.disabled_reason = ""
    route.disabled_at = None
    route.failing_since = None
    route.generation += 1
