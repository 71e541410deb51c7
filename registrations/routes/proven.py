"""Proven addresses: those to which a push was delivered.

Anybody can make keys, registrations and requests without limit. But an address to which Apple or Firebase delivers is a
real phone, which costs its owner something. So messages about proven addresses have priority.
"""

from collections.abc import Collection, Mapping
from typing import LiteralString

from kit.db.statements import fetch
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.messages import Named
from registrations.models import Registration, Route

_FIND: LiteralString = f"""
    SELECT public_key_hash, installation_id, access_token_digest, registration.version, route.address_digest
    FROM unnest(%(hashes)b::bytea[], %(installations)b::text[]) AS named (public_key_hash, installation_id)
    JOIN registrations_registration AS registration USING (public_key_hash, installation_id)
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE registration.state = '{Registration.State.ACTIVE}' AND route.state = '{Route.State.ACTIVE}'
        AND route.is_proven
"""

_FIND_KEYS: LiteralString = f"""
    SELECT DISTINCT public_key_hash FROM registrations_registration AS registration
    JOIN registrations_route AS route ON route.id = registration.route_id
    WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND registration.state = '{Registration.State.ACTIVE}'
        AND route.state = '{Route.State.ACTIVE}' AND route.is_proven
"""


def find_proven_keys(public_key_hashes: Collection[bytes]) -> set[bytes]:
    """Return the keys with an installation whose address is proven."""
    if not public_key_hashes:
        return set()
    return {bytes(found) for (found,) in fetch(_FIND_KEYS, {"hashes": list(public_key_hashes)})}


def find_proven_addresses(named: Collection[Named]) -> Mapping[Named, bytes]:
    """Return the address digests of the named installations with a proven address.

    A named installation counts only if its access token is right, or if its registration has a newer version.
    """
    wanted = list({each.installation for each in named})
    if not wanted:
        return {}
    hashes, installations = zip(*wanted, strict=True)
    rows = fetch(_FIND, {"hashes": list(hashes), "installations": list(installations)})
    found = {(key_hash, installation_id): known for key_hash, installation_id, *known in rows}
    return {
        each: found[each.installation][-1]
        for each in named
        if each.installation in found and _is_right(each, *found[each.installation][:-1])
    }


def _is_right(named: Named, token_digest: bytes | None, version: int) -> bool:
    if named.access_token is None:
        return named.version > version
    return keyring().matches(Purpose.ACCESS_TOKEN, named.access_token.encode(), token_digest or b"")
