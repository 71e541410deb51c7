"""Import of the registrations of a status-go push server, as if they came now, so that no phone has to register again.

Each row is the last registration of a client, so its grant, its access token and its version stay valid. status-go has
verified the grants. They cannot be verified here, because the rows have only a hash of the client's key.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from django.conf import settings

from kit.buckets.shared import own_buckets
from notifications.acceptance import acceptance
from registrations import registering
from registrations.messages import RegistrationMessage
from registrations.rules import Acceptance
from waku_bridge import query_topics
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.wire import parse_registration
from waku_bridge.messages import BRIDGE

BATCH_SIZE = 500
KEY_HASH_BYTES = 64
# Its schema has not changed since 2020: protocol/pushnotificationserver/migrations/sql.
TABLE = "push_notification_server_registrations"
COLUMNS = {"public_key", "installation_id", "version", "registration"}


class NotStatusGoError(ValueError):
    """The database has no registrations, or has them in another form."""


class Row(NamedTuple):
    """One installation. ``registration`` is the message as the client sent it, or None once it unregistered."""

    public_key_hash: bytes
    installation_id: str
    version: int
    registration: bytes | None


def read(database: sqlite3.Connection) -> Iterator[Row]:
    """Yield the rows of a database. Raises NotStatusGoError."""
    found = {name for _, name, *_ in database.execute(f"PRAGMA table_info({TABLE})")}
    if missing := COLUMNS - found:
        fault = f"its registrations have no {', '.join(sorted(missing))}" if found else "it has no registrations"
        raise NotStatusGoError(fault)
    (verdict,) = database.execute(f"PRAGMA quick_check({TABLE})").fetchone()
    if verdict != "ok":
        raise NotStatusGoError(f"its registrations are damaged: {verdict}")
    for row in database.execute(f"SELECT public_key, installation_id, version, registration FROM {TABLE}"):
        yield Row._make(row)


def carry_over(rows: Iterable[Row], *, server_public_key: bytes, now: datetime) -> Counter[str]:
    """Register the rows in the caller's transaction, and return the number of rows by outcome."""
    ends, left = Counter[str](), iter(rows)
    while batch := list(islice(left, BATCH_SIZE)):
        submissions = [each for row in batch if (each := _submission(row, server_public_key))]
        ends["unreadable"] += len(batch) - len(submissions)
        outcomes = registering.register(
            submissions,
            bridge=BRIDGE,
            gateway=settings.STATUS_GATEWAY,
            is_import=True,
            now=now,
        )
        own_buckets().take_back()  # an import spends nothing
        accepted = {s.public_key_hash for s, outcome in zip(submissions, outcomes, strict=True) if outcome.is_accepted}
        query_topics.listen_to(accepted, now=now)
        acceptance.withdraw({route_id for each in outcomes for route_id in each.removed_route_ids}, now=now)
        ends.update(str(outcome.decision) for outcome in outcomes)
    return +ends


def is_carried_over(end: str) -> bool:
    """Return whether this outcome of `carry_over` means that the row was imported."""
    return end in {str(acceptance) for acceptance in Acceptance}


def _submission(row: Row, server_public_key: bytes) -> registering.Submission | None:
    """Return a row as the registration that the client sent, or None where the row is unreadable."""
    if not isinstance(row.public_key_hash, bytes) or len(row.public_key_hash) != KEY_HASH_BYTES:
        return None
    if row.registration is None:
        gone = RegistrationMessage(installation_id=row.installation_id, version=row.version, unregister=True)
        return registering.Submission(row.public_key_hash, b"", gone, grant_verified=False)
    try:
        message = parse_registration(row.registration)
    except CodecError:
        return None
    return registering.Submission(
        row.public_key_hash, row.registration, message, grant_verified=True, server_public_key=server_public_key
    )
