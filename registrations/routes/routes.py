"""Statements on routes of all bridges: a new address, and the record of a delivery."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import LiteralString

from kit.db.statements import write
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.models import Route
from registrations.routes.addresses import read_address
from registrations.rules import PROVEN_PER_ADDRESS
from registrations.token_types import has_topic

# Identity of an address at Apple, where the same token in another app is another address.
_AT_APPLE = b"%d %s\0"


def identity_of(token_type: int, app_topic: str, address: bytes) -> bytes:
    """Return the input of an address digest: the address, and its app if tokens of this type belong to an app.

    A delivery to a token in one app proves nothing about the same token in another app. At Apple only the device token
    counts. Its environment and its token for calls do not make it another device.
    """
    if not has_topic(token_type):
        return address
    return _AT_APPLE % (len(app_topic.encode()), app_topic.encode()) + _token(address)


def _token(address: bytes) -> bytes:
    try:
        return read_address(address).token.encode()
    except ValueError:  # the gateway has addresses in another format
        return address


def is_at(route: Route, token_type: int, app_topic: str, address: bytes) -> bool:
    """Return whether a route already leads to the device of this address."""
    identity = identity_of(token_type, app_topic, address)
    return route.token_type == token_type and keyring().matches(Purpose.ADDRESS, identity, route.address_digest)


def point(route: Route, *, gateway: str, token_type: int, app_topic: str, address: bytes) -> None:
    """Set the address of a route, which also enables a disabled route. The caller stores it."""
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
# A route is updated at most once per address and hour, because busy devices get many pushes.
_NOTE_DELIVERED: LiteralString = f"""
    WITH proven AS MATERIALIZED (
        SELECT id, digest, row_number() OVER (PARTITION BY digest ORDER BY id) + (
            SELECT count(*) FROM (
                SELECT FROM registrations_route WHERE delivered_digest = digest LIMIT {PROVEN_PER_ADDRESS}
            ) AS known
        ) <= {PROVEN_PER_ADDRESS} AS is_new
        FROM unnest(%(ids)b::bigint[], %(digests)b::bytea[]) AS reached (id, digest)
        JOIN registrations_route USING (id)
        WHERE NOT is_proven AND delivered_digest IS DISTINCT FROM digest
    )
    UPDATE registrations_route AS route
    SET last_success_at = %(now)s, failing_since = NULL,
        delivered_digest = CASE WHEN is_proven THEN delivered_digest ELSE coalesce(locked.digest, delivered_digest) END
    FROM (
        SELECT route.id, proven.digest
        FROM registrations_route AS route LEFT JOIN proven ON proven.id = route.id AND is_new
        WHERE route.id = ANY (%(ids)b::bigint[]) AND (
            failing_since IS NOT NULL OR last_success_at IS NULL
            OR last_success_at < %(now)s::timestamptz - interval '1 hour' OR proven.digest IS NOT NULL
        )
        ORDER BY route.id FOR NO KEY UPDATE OF route
    ) AS locked
    WHERE route.id = locked.id
"""


def lock_in_order(route_ids: Collection[int]) -> None:
    """Lock the routes of a batch in the order of their ids, before some of them are written.

    Otherwise two batches could lock the same routes in different orders and dead-lock.
    """
    write(_LOCK, {"ids": list(route_ids)})


def note_delivered(reached: Mapping[int, bytes], *, now: datetime) -> None:
    """Record deliveries to routes, where the record changes something.

    ``reached`` has the digest of the address of each delivery, by route. A route may have another address by now. The
    delivery does not prove that one, but it stays proven if it already is. An address proves `PROVEN_PER_ADDRESS`.
    """
    write(_NOTE_DELIVERED, {"ids": list(reached), "digests": list(reached.values()), "now": now})
