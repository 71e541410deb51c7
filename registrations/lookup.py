"""Lookup for queries: the installations of a key that can be notified, and their tokens."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import LiteralString, NamedTuple

from kit.db.statements import fetch
from kit.metrics.batches import count
from registrations import metrics
from registrations.keys.encryption import Purpose
from registrations.keys.keyring import keyring
from registrations.messages import QueryInfo
from registrations.models import Registration, Route
from registrations.rules import INSTALLATIONS_PER_KEY

# Limits of an answer: for one key the size of a message, and for all keys of a batch the memory of a process.
# Installations with a proven address come first, as anybody can make any number of others. Then come the newest of all
# keys, and among them the smallest, so that a long list displaces no short one.
MAX_KEY_BYTES = 140_000
MAX_BATCH_BYTES = 16 * 1024 * 1024


class _Row(NamedTuple):
    """An installation of the answer, as the query returns it."""

    public_key_hash: bytes
    installation_id: str
    version: str  # in decimal digits: unsigned 64 bits
    grant: bytes
    contacts_only: bool
    access_token_encrypted: bytes | None
    allowed_key_list: list[bytes] | None
    server_public_key: bytes
    is_proven: bool


# A list of keys is read only if it is part of the answer and within the limits. `pg_column_size` does not read it.
_FIND: LiteralString = f"""
    WITH asked AS (
        SELECT registration.id, public_key_hash, signature, server_public_key, is_proven,
               row_number() OVER (PARTITION BY public_key_hash ORDER BY granted_at DESC, registration.id) AS recency,
               256 + CASE WHEN allow_from_contacts_only THEN pg_column_size(allowed_key_list) ELSE 0 END AS bytes
        FROM registrations_grant AS granted
        JOIN registrations_registration AS registration ON registration.id = granted.registration_id
        JOIN registrations_route AS route ON route.id = registration.route_id
        WHERE public_key_hash = ANY (%(hashes)b::bytea[]) AND server_public_key = ANY (%(servers)b::bytea[])
            AND registration.state = '{Registration.State.ACTIVE}' AND enabled AND route.state = '{Route.State.ACTIVE}'
            AND NOT EXISTS (
                SELECT FROM registrations_grant AS newer
                WHERE newer.registration_id = granted.registration_id AND newer.id <> granted.id
                    AND newer.server_public_key = ANY (%(servers)b::bytea[])
                    AND (newer.granted_at, newer.id) > (granted.granted_at, granted.id)
            )
    ), bounded AS (
        SELECT *, sum(bytes) OVER (PARTITION BY public_key_hash ORDER BY recency) AS of_key,
               sum(bytes) OVER (ORDER BY is_proven DESC, recency, bytes, id) AS of_batch
        FROM asked WHERE recency <= %(limit)s
    )
    SELECT registration.public_key_hash, installation_id, version::text, signature, allow_from_contacts_only,
           access_token_encrypted, CASE WHEN allow_from_contacts_only THEN allowed_key_list END,
           server_public_key, is_proven
    FROM bounded JOIN registrations_registration AS registration ON registration.id = bounded.id
    WHERE of_key <= %(key_bytes)s AND of_batch <= %(batch_bytes)s
    ORDER BY registration.public_key_hash, recency
"""


def find(public_key_hashes: Iterable[bytes], *, server_public_keys: Sequence[bytes]) -> dict[bytes, list[QueryInfo]]:
    """Return the installations of these keys that a sender may know, by key hash, newest first.

    Keys without such an installation are absent. Unregistered and disabled installations are left out, those that do
    not want to be notified, and those beyond the limits. Clients verify the grant, so it must name one of
    ``server_public_keys`` (33 bytes each). An installation with several such grants appears once, with the newest one.
    """
    asked = set(public_key_hashes)
    rows = fetch(
        _FIND,
        {
            "hashes": list(asked),
            "servers": list(server_public_keys),
            "limit": INSTALLATIONS_PER_KEY,
            "key_bytes": MAX_KEY_BYTES,
            "batch_bytes": MAX_BATCH_BYTES,
        },
    )
    found: defaultdict[bytes, list[QueryInfo]] = defaultdict(list)
    for row in map(_Row._make, rows):
        found[row.public_key_hash].append(_info(row))
    count(metrics.QUERIED_KEYS, {("found",): len(found), ("not_found",): len(asked) - len(found)})
    return dict(found)


_COUNT = f"""
    SELECT server_public_key, count(*) FROM (
        SELECT DISTINCT ON (registration_id) server_public_key
        FROM registrations_grant JOIN registrations_registration AS registration ON registration.id = registration_id
        WHERE registration.state = '{Registration.State.ACTIVE}' ORDER BY registration_id, granted_at DESC
    ) AS newest GROUP BY server_public_key
"""


def count_by_newest_grant() -> dict[bytes, int]:
    """Return by server key (33 bytes) the number of registered installations whose newest grant is for that server.

    It reads every grant, so it is for requests of operators only.
    """
    return {bytes(public_key): number for public_key, number in fetch(_COUNT)}


def _info(row: _Row) -> QueryInfo:
    """Return the answer about an installation: its token, or the encrypted copies of it if only contacts may use it."""
    sealed = row.access_token_encrypted or b""
    is_open = not row.contacts_only
    return QueryInfo(
        public_key_hash=row.public_key_hash,
        installation_id=row.installation_id,
        version=int(row.version),
        grant=row.grant,
        access_token=keyring().decrypt(Purpose.ACCESS_TOKEN, sealed).decode() if is_open else "",
        allowed_key_list=tuple(row.allowed_key_list or ()),
        server_public_key=row.server_public_key,
        has_proven_address=row.is_proven,
    )
