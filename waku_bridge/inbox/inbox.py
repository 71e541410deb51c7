"""The inbox: the table that every envelope on a topic of ours is written to before anything else happens to it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, LiteralString

from django.db import connection

from kit.batches.batch import OLD, OLD_AFTER_SECONDS
from kit.db.statements import fetch
from kit.metrics import count
from waku_bridge.messages import Envelope
from waku_bridge.metrics import INBOX_ENVELOPES
from waku_bridge.models import ENVELOPE, EnvelopeFacts

State = EnvelopeFacts.State
Path = EnvelopeFacts.Path

NS_PER_DAY = 86_400 * 10**9
ANNOUNCED_AS = "inbox"
# The commit wakes the workers: see `kit.batches.batch.CHANNEL`. Lists of bytes are sent in binary (%b). By default
# psycopg sends lists as text, which makes a payload twice as long and costs both sides four times the CPU time.
# The day of a hash follows the sender's clock, counted from 1970 on: see `EnvelopeHash`.
INSERT = f"""
    WITH offered AS MATERIALIZED (
        SELECT * FROM unnest(%b::bytea[], %s::text[], %s::text[], %s::bigint[], %b::bytea[])
            AS envelope (hash, pubsub_topic, content_topic, timestamp_ns, payload)
    ), new AS (
        INSERT INTO waku_bridge_envelopehash (hash, sent_on)
        SELECT hash, '1970-01-01'::date + (timestamp_ns / {NS_PER_DAY})::integer FROM offered
        ON CONFLICT DO NOTHING
        RETURNING hash
    ), stored AS (
        INSERT INTO waku_bridge_openenvelope
            (hash, pubsub_topic, content_topic, timestamp_ns, payload, source, path, state, received_at)
        SELECT offered.*, %s::text, %s::text, '{State.RECEIVED}', %s::timestamptz FROM offered JOIN new USING (hash)
        RETURNING received_at > now() - interval '{OLD_AFTER_SECONDS} seconds' AS is_recent
    ), announced AS (
        SELECT pg_notify('batches', CASE WHEN bool_and(is_recent) THEN '{ANNOUNCED_AS}' ELSE '{OLD}' END)
        FROM stored HAVING count(*) > 0
    )
    SELECT hash FROM new, announced
"""
# Limit of the payloads in one statement, which then takes a second at most. A statement with a page of 180 MB would
# exceed any timeout, be repeated unchanged, and never succeed.
SLICE_BYTES = 8 * 1024 * 1024
OVERLOAD = "overload"


def ending(where: LiteralString, *, kept_if: LiteralString = "TRUE", **values: LiteralString) -> LiteralString:
    """Return the parts ``over`` and ``ended`` of a WITH, which move open envelopes to the history.

    They are those for which a condition holds. ``values`` are expressions for columns of the history, and rows for
    which ``kept_if`` is false leave none. The statement needs ``now``.
    """
    return f"""
        over AS (DELETE FROM waku_bridge_openenvelope AS envelope WHERE {where} RETURNING *),
        ended AS (
            INSERT INTO waku_bridge_endedenvelope ({ENVELOPE}, {", ".join(values)}, processed_at, ended_on)
            SELECT {ENVELOPE}, {", ".join(values.values())}, %(now)s::timestamptz,
                (%(now)s::timestamptz AT TIME ZONE 'UTC')::date
            FROM over AS envelope WHERE {kept_if} RETURNING hash
        )
    """


_BEYOND_LIMIT: LiteralString = f"""
    hash = ANY (
        ARRAY(
            SELECT hash FROM waku_bridge_openenvelope
            WHERE state = '{State.POSTPONED}' AND (received_at, timestamp_ns) <= (
                SELECT received_at, timestamp_ns FROM waku_bridge_openenvelope
                WHERE state = '{State.POSTPONED}' ORDER BY received_at DESC, timestamp_ns DESC
                OFFSET %(limit)s LIMIT 1
            )
            ORDER BY received_at, timestamp_ns LIMIT %(max_dropped)s FOR UPDATE SKIP LOCKED
        ) || ARRAY(
            SELECT hash FROM waku_bridge_openenvelope
            WHERE state = '{State.PENDING_KEY}' AND received_at <= (
                SELECT received_at FROM waku_bridge_openenvelope
                WHERE state = '{State.PENDING_KEY}' ORDER BY received_at DESC OFFSET %(limit)s LIMIT 1
            )
            ORDER BY received_at LIMIT %(max_dropped)s FOR UPDATE SKIP LOCKED
        )
    )
"""
_DROPPED: LiteralString = ending(_BEYOND_LIMIT, state=f"'{State.DROPPED}'", reason=f"'{OVERLOAD}'")
# Drops the oldest postponed envelopes, and the oldest that wait for a key, beyond a limit for each of the two. Returns
# how many it dropped, whether more than the limit wait unopened, when the oldest of these came, and the time.
# Rows from before the oldest one are not read: they have ended, and stay in the index until no snapshot needs them.
# The oldest envelope that may stay is found in the index alone, and no envelope that stays is locked.
BOUND = f"""
    WITH {_DROPPED}
    SELECT (SELECT count(*) FROM ended), EXISTS (
        SELECT FROM waku_bridge_openenvelope
        WHERE state = '{State.RECEIVED}' AND received_at >= %(nothing_before)s
        ORDER BY received_at OFFSET %(limit)s LIMIT 1
    ), (
        SELECT min(received_at) FROM waku_bridge_openenvelope
        WHERE state = '{State.RECEIVED}' AND received_at >= %(nothing_before)s
    ), clock_timestamp()
"""
_OF_HASHES: LiteralString = "hash = ANY (%(hashes)b::bytea[])"
_FORGOTTEN: LiteralString = ending(_OF_HASHES, state=f"'{State.DROPPED}'", reason="%(reason)s::text")
_DROP: LiteralString = f"WITH {_FORGOTTEN} SELECT count(*) FROM ended"
KNOWN = "SELECT hash FROM waku_bridge_envelopehash WHERE hash = ANY(%b::bytea[])"


def slices(envelopes: Iterable[Envelope]) -> Iterator[list[Envelope]]:
    """Yield the envelopes in the order of their hashes, in slices of at most `SLICE_BYTES` of payload.

    A larger envelope is a slice by itself.
    """
    part, left = list[Envelope](), SLICE_BYTES
    for envelope in sorted(envelopes, key=lambda envelope: envelope.hash):
        if part and left < len(envelope.message.payload):
            yield part
            part, left = [], SLICE_BYTES
        part.append(envelope)
        left -= len(envelope.message.payload)
    if part:
        yield part


def insert_values(envelopes: Sequence[Envelope], *, source: str, path: Path, now: datetime) -> list[Any]:
    """Return the values for `INSERT`, each hash once.

    All callers use the same order, which prevents deadlocks: several paths bring the same envelopes at the same time
    and wait for each other's rows.
    """
    rows = [envelope for _, envelope in sorted({envelope.hash: envelope for envelope in envelopes}.items())]
    return [
        [e.hash for e in rows],
        [e.pubsub_topic for e in rows],
        [e.message.content_topic for e in rows],
        [e.message.timestamp_ns for e in rows],
        [e.message.payload for e in rows],
        source,
        path.value,
        now,
    ]


def store(envelopes: Sequence[Envelope], *, source: str, now: datetime, path: Path = Path.LIVE) -> list[bytes]:
    """Write the new envelopes and return their hashes. An envelope that came before, by any path, is left unchanged.

    The bridge does the same on a connection of its own: see `reading.intake`.
    """
    if not envelopes:
        return []
    with connection.cursor() as cursor:
        cursor.execute(INSERT, insert_values(envelopes, source=source, path=path, now=now))
        new = {bytes(envelope_hash) for (envelope_hash,) in cursor.fetchall()}
    count(INBOX_ENVELOPES, {("new",): len(new), ("duplicate",): len(envelopes) - len(new)})
    return [envelope_hash for envelope_hash in dict.fromkeys(e.hash for e in envelopes) if envelope_hash in new]


def drop(envelope_hashes: Collection[bytes], reason: str, *, now: datetime) -> None:
    """End those of these envelopes that wait. Their senders get no answer."""
    fetch(_DROP, {"hashes": list(envelope_hashes), "reason": reason, "now": now})
