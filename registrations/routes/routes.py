"""Routes: pointing one to an address, and noting what was delivered to it, for whatever bridge it is of."""

from collections.abc import Collection, Mapping
from datetime import datetime

from kit.db.statements import write
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.models import Route
from registrations.routes.addresses import read_address
from registrations.token_types import has_topic

# What tells addresses apart at Apple and nowhere else: the same token in another app is another address.
_AT_APPLE = b"%d %s\0"


def identity_of(token_type: int, app_topic: str, address: bytes) -> bytes:
    """Return what the digest of an address is made of: the address, and its app where a token is one of an app.

    A delivery to a token in one app proves nothing about the same token in another. At Apple it is the device's own
    token that counts: whatever environment or token for calls it is registered with, it is one device.
    """
    if not has_topic(token_type):
        return address
    return _AT_APPLE % (len(app_topic.encode()), app_topic.encode()) + _token(address)


def _token(address: bytes) -> bytes:
    try:
        return read_address(address).token.encode()
    except ValueError:  # of a gateway that has addresses of another form
        return address


def is_at(route: Route, token_type: int, app_topic: str, address: bytes) -> bool:
    """Return whether a route leads to the device of this address already."""
    identity = identity_of(token_type, app_topic, address)
    return route.token_type == token_type and keyring().matches(Purpose.ADDRESS, identity, route.address_digest)


def point(route: Route, *, gateway: str, token_type: int, app_topic: str, address: bytes) -> None:
    """Give a route this address. This also revives one whose token had died. The caller stores it."""
    route.gateway = gateway
    route.token_type = token_type
    route.app_topic = app_topic
    route.address_encrypted = keyring().encrypt(Purpose.ADDRESS, address)
    route.address_digest = keyring().digest(Purpose.ADDRESS, identity_of(token_type, app_topic, address))
    route.state = Route.State.ACTIVE
    route.disabled_reason = ""
    route.disabled_at = None
    route.failing_since = None
    route.generation += 1


_LOCK = "SELECT FROM registrations_route WHERE id = ANY (%(ids)b::bigint[]) ORDER BY id FOR NO KEY UPDATE"
# Once per address and hour: nobody needs it more exactly, and a busy device is pushed to often.
_NOTE_DELIVERED = """
    UPDATE registrations_route AS route
    SET last_success_at = %(now)s, failing_since = NULL,
        delivered_digest = CASE WHEN is_proven THEN delivered_digest ELSE locked.digest END
    FROM (
        SELECT id, digest
        FROM unnest(%(ids)b::bigint[], %(digests)b::bytea[]) AS reached (id, digest)
        JOIN registrations_route USING (id)
        WHERE failing_since IS NOT NULL OR last_success_at IS NULL
            OR last_success_at < %(now)s::timestamptz - interval '1 hour'
            OR NOT is_proven AND delivered_digest IS DISTINCT FROM digest
        ORDER BY id FOR NO KEY UPDATE OF registrations_route
    ) AS locked
    WHERE route.id = locked.id
"""


def lock_in_order(route_ids: Collection[int]) -> None:
    """Lock the routes of a batch before anything is written about some of them.

    Two batches that lock the same routes one after the other, each in its own order, would wait for each other until
    the database ends one of them.
    """
    write(_LOCK, {"ids": list(route_ids)})


def note_delivered(reached: Mapping[int, bytes], *, now: datetime) -> None:
    """Note that something was delivered to these routes, where that is news.

    ``reached`` has, for each route, the digest of the address that was sent to. It may have another one by now: that
    one is not proven by it, and stays proven if it is.
    """
    write(_NOTE_DELIVERED, {"ids": list(reached), "digests": list(reached.values()), "now": now})
