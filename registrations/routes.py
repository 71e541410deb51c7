"""Statements on the routes of all bridges: which addresses are proven, and the record of a delivery.

An address is proven once a push was delivered to it. Anybody can make keys, registrations and requests without limit.
But an address to which Apple or Firebase delivers is a real phone, which costs its owner something. So messages about
proven addresses have priority.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

from kit.db.base import fetch, write
from registrations import statements
from registrations.encryption import Purpose, keyring
from registrations.messages import Named


def find_proven_keys(public_key_hashes: Collection[bytes]) -> set[bytes]:
    """Return the keys with an installation whose address is proven."""
    if not public_key_hashes:
        return set()
    return {bytes(found) for (found,) in fetch(statements.FIND_PROVEN_KEYS, {"hashes": list(public_key_hashes)})}


def find_proven_addresses(named: Collection[Named]) -> Mapping[Named, bytes]:
    """Return the address digests of the named installations with a proven address.

    A named installation counts only if its access token is right, or if its registration has a newer version.
    """
    wanted = list({each.installation for each in named})
    if not wanted:
        return {}
    hashes, installations = zip(*wanted, strict=True)
    rows = fetch(statements.FIND_PROVEN_ADDRESSES, {"hashes": list(hashes), "installations": list(installations)})
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


def lock_in_order(route_ids: Collection[int]) -> None:
    """Lock the routes of a batch in the order of their ids, before some of them are written.

    Otherwise two batches could lock the same routes in different orders and dead-lock.
    """
    write(statements.LOCK_ROUTES, {"ids": list(route_ids)})


def note_delivered(reached: Mapping[int, bytes], *, now: datetime) -> None:
    """Record deliveries to routes, where the record changes something.

    ``reached`` has the digest of the address of each delivery, by route. A route may have another address by now. The
    delivery does not prove that one, but it stays proven if it already is. An address proves `PROVEN_PER_ADDRESS`.
    """
    write(statements.NOTE_DELIVERED, {"ids": list(reached), "digests": list(reached.values()), "now": now})
