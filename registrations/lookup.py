"""What others ask about registrations: queries of senders, the topics of such queries, and which addresses are proven.

A query returns the installations of a key that can be notified, and their tokens.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from django.db import transaction

from kit.db.base import fetch, write
from kit.telemetry import count
from registrations import metrics, statements
from registrations.encryption import Purpose, keyring
from registrations.messages import Named, QueryInfo
from registrations.retention import walk
from registrations.rules import INSTALLATIONS_PER_KEY

# Limits of an answer: for one key the size of a message, and for all keys of a batch the memory of a process.
# Installations with a proven address come first, as anybody can make any number of others. Then come the newest of all
# keys, and among them the smallest, so that a long list displaces no short one.
MAX_KEY_BYTES = 140_000
MAX_BATCH_BYTES = 16 * 1024 * 1024


def find(public_key_hashes: Iterable[bytes], *, server_public_keys: Sequence[bytes]) -> dict[bytes, list[QueryInfo]]:
    """Return the installations of these keys that a sender may know, by key hash, newest first.

    Keys without such an installation are absent. Unregistered and disabled installations are left out, those that do
    not want to be notified, and those beyond the limits. Clients verify the grant, so it must name one of
    ``server_public_keys`` (33 bytes each). An installation with several such grants appears once, with the newest one.
    """
    asked = set(public_key_hashes)
    rows = fetch(
        statements.FIND_INSTALLATIONS,
        {
            "hashes": list(asked),
            "servers": list(server_public_keys),
            "limit": INSTALLATIONS_PER_KEY,
            "key_bytes": MAX_KEY_BYTES,
            "batch_bytes": MAX_BATCH_BYTES,
        },
    )
    found: defaultdict[bytes, list[QueryInfo]] = defaultdict(list)
    for key_hash, installation_id, version, grant, sealed, contacts, server, is_proven in rows:
        token = keyring().decrypt(Purpose.ACCESS_TOKEN, sealed).decode() if sealed is not None else ""
        known = QueryInfo(
            key_hash, installation_id, int(version), grant, token, tuple(contacts or ()), server, is_proven
        )
        found[key_hash].append(known)
    count(metrics.QUERIED_KEYS, {("found",): len(found), ("not_found",): len(asked) - len(found)})
    return dict(found)


# Query topics, one for each registered key hash. The bridge with such topics defines their names, and listens to them.


def add_topics(topics: Mapping[str, int], *, now: datetime) -> list[int]:
    """Store names with their topics, and return the topics of the new names.

    The names are sorted, so that two transactions with the same new names do not dead-lock. The later one waits for the
    commit of the earlier one, and so for its announcement.
    """
    names = sorted(topics)
    rows = fetch(statements.INSERT_TOPICS, {"now": now, "names": names, "topics": [topics[name] for name in names]})
    return [topic for (topic,) in rows]


def names_without_registration() -> Iterator[list[str]]:
    """Yield lists of names of key hashes that have no registration any more, one list for each step of a walk."""
    for step in walk("registrations_topickey"):
        yield [name for (name,) in fetch(statements.TOPICS_WITHOUT_REGISTRATION, step)]


@transaction.atomic
def remove_topics(names: Sequence[str]) -> list[int]:
    """Remove these names, except those that are just being registered, and return the topics of the removed ones.

    A registering transaction stores the registration first, and then its name if it is missing. The lock of the table
    waits for transactions that have already looked for their name, and makes later ones wait for a moment. So no name
    is removed between the two steps.
    """
    write("SET LOCAL lock_timeout = '1s'")
    write("LOCK TABLE registrations_topickey IN SHARE ROW EXCLUSIVE MODE")
    return [topic for (topic,) in fetch(statements.REMOVE_TOPICS, {"names": names})]


# Addresses of the routes of all bridges: which are proven, and the record of a delivery -------------------------------
#
# An address is proven once a push was delivered to it. Anybody can make keys, registrations and requests without limit.
# But an address to which Apple or Firebase delivers is a real phone, which costs its owner something. So messages about
# proven addresses have priority.


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
