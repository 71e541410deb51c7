"""The inbox: the table that every envelope on a topic of ours is written to before anything else happens to it.

Bridges store envelopes. Workers take them, and end each one: its row moves to the history of its day.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, LiteralString, NamedTuple

from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Now

from kit.batches.batch import LONG_AGO
from kit.batches.looking import since
from kit.db.base import array_value, fetch, write, write_rows
from kit.telemetry import count
from notifications.messages import PushRequest
from waku_bridge import query_topics
from waku_bridge.inbox.priority import BUDGET, BYTES_PER_UNIT
from waku_bridge.messages import Body, Decoded, Envelope, MessageType, Query, Registration
from waku_bridge.metrics import INBOX_ENVELOPES
from waku_bridge.models import ENVELOPE, EnvelopeFacts, OpenEnvelope

State = EnvelopeFacts.State
Path = EnvelopeFacts.Path

# Storing --------------------------------------------------------------------------------------------------------------
NS_PER_DAY = 86_400 * 10**9
# The commit wakes the step `Inbox`: see `kit.batches.batch.wake`. Lists of bytes are sent in binary (%b). By default
# psycopg sends lists as text, which makes a payload twice as long and costs both sides four times the CPU time.
# The day of a hash follows the sender's clock, counted from 1970 on: see `EnvelopeHash`.
INSERT = f"""
    WITH offered AS MATERIALIZED (
        SELECT * FROM unnest(%b::bytea[], %s::text[], %s::text[], %s::bigint[], %b::bytea[])
            AS envelope (hash, pubsub_topic, content_topic, timestamp_ns, payload)
    ), moment AS MATERIALIZED (
        SELECT at AS received_at, greatest(at, clock_timestamp()) AS due_at FROM (SELECT %s::timestamptz) AS came (at)
    ), new AS (
        INSERT INTO waku_bridge_envelopehash (hash, sent_on)
        SELECT hash, '1970-01-01'::date + (timestamp_ns / {NS_PER_DAY})::integer FROM offered
        ON CONFLICT DO NOTHING
        RETURNING hash
    ), stored AS (
        INSERT INTO waku_bridge_openenvelope
            (hash, pubsub_topic, content_topic, timestamp_ns, payload, source, path, state, received_at, due_at)
        SELECT offered.*, %s::text, %s::text, '{State.RECEIVED}', moment.*
        FROM offered JOIN new USING (hash) CROSS JOIN moment RETURNING 1
    ), announced AS (
        SELECT pg_notify('batches', 'Inbox') FROM stored HAVING count(*) > 0
    )
    SELECT hash FROM new, announced
"""
# Limit of the payloads in one statement, which then takes a second at most. A statement with a page of 180 MB would
# exceed any timeout, be repeated unchanged, and never succeed.
SLICE_BYTES = 8 * 1024 * 1024


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


def insert_values(envelopes: Sequence[Envelope], *, source: str, path: Path, received_at: datetime) -> list[Any]:
    """Return the values for `INSERT`, each hash once. The envelopes are due now, however long ago they came.

    Now is the time of the database: a process that goes by another one (docs/decisions/0141) would write times older
    than the marks of the workers.

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
        received_at,
        source,
        path.value,
    ]


def store(envelopes: Sequence[Envelope], *, source: str, now: datetime, path: Path = Path.LIVE) -> list[bytes]:
    """Write the new envelopes and return their hashes. An envelope that came before, by any path, is left unchanged.

    The bridge does the same on a connection of its own: see `reading.intake`.
    """
    if not envelopes:
        return []
    with connection.cursor() as cursor:
        cursor.execute(INSERT, insert_values(envelopes, source=source, path=path, received_at=now))
        new = {bytes(envelope_hash) for (envelope_hash,) in cursor.fetchall()}
    count(INBOX_ENVELOPES, {("new",): len(new), ("duplicate",): len(envelopes) - len(new)})
    return [envelope_hash for envelope_hash in dict.fromkeys(e.hash for e in envelopes) if envelope_hash in new]


# Taking ---------------------------------------------------------------------------------------------------------------
# Limit of the payloads that one batch opens: half as many bytes as it may decide, because others wait for each batch.
MAX_BATCH_BYTES = BUDGET * BYTES_PER_UNIT // 2
MESSAGE_TYPES: dict[type[Body], MessageType] = {
    Registration: MessageType.REGISTRATION,
    Query: MessageType.QUERY,
    PushRequest: MessageType.REQUEST,
}


@dataclass(slots=True)
class Item:
    """One envelope of a batch: as it waits, its message once it is opened, and how it ends.

    ``decoded`` is None when there is nothing to decide.
    """

    hash: bytes
    pubsub_topic: str
    content_topic: str
    payload: bytes
    received_at: datetime
    decoded: Decoded | None = None
    state: State = State.DROPPED
    reason: str = ""
    is_kept: bool = True  # otherwise it leaves no row

    @property
    def type(self) -> MessageType | None:
        return MESSAGE_TYPES[type(self.decoded.body)] if self.decoded else None

    def drop(self, reason: str) -> None:
        self.decoded, self.state, self.reason = None, State.DROPPED, reason


class Taken(NamedTuple):
    """Envelopes that this worker alone processes, and whether there are more."""

    items: list[Item]
    is_more_left: bool


_TAKE = """
    WITH waiting AS (
        SELECT hash, pubsub_topic, content_topic, coalesce(payload, '') AS payload, received_at, timestamp_ns,
               sum(length(coalesce(payload, ''))) OVER ({order}, hash) AS bytes, {max_bytes} AS max_bytes,
               count(*) OVER () AS locked
        FROM ({rows}) AS locked
    )
    SELECT hash, pubsub_topic, content_topic, payload, received_at, locked FROM waiting
    WHERE bytes - length(payload) < max_bytes ORDER BY received_at, timestamp_ns, hash
"""
_ROWS = """
    SELECT * FROM waku_bridge_openenvelope
    WHERE {which} ORDER BY {order} LIMIT {limit} FOR UPDATE SKIP LOCKED
"""
_ARRIVAL = "due_at, timestamp_ns"
_REVERSED = "due_at DESC, timestamp_ns DESC"
# The first attempt is due at once, even where the clock of the process that stored the envelope is ahead of ours.
_IS_DUE: LiteralString = "(attempt_count = 0 OR due_at <= now())"
_NEW_ONES: LiteralString = f"state = '{State.RECEIVED}' AND due_at >= %(nothing_before)s AND {_IS_DUE}"
_POSTPONED_ONES: LiteralString = f"state = '{State.POSTPONED}' AND {_IS_DUE}"
WAITING: LiteralString = f"SELECT min(due_at) FROM waku_bridge_openenvelope WHERE {_NEW_ONES}"
POSTPONED: LiteralString = f"SELECT FROM waku_bridge_openenvelope WHERE {_POSTPONED_ONES}"
_RECEIVED: LiteralString = f"{_NEW_ONES} AND hash <> ALL (%(but)b::bytea[])"


def _rows(which: LiteralString, order: LiteralString, limit: LiteralString = "%(limit)s") -> LiteralString:
    return _ROWS.format(which=which, order=order, limit=limit)


# The smallest of the locked envelopes fill the bytes of a batch first, so that large ones delay no other.
_SIZE: LiteralString = "length(coalesce(payload, ''))"


def _take_in(order: LiteralString, which: LiteralString) -> LiteralString:
    return _TAKE.format(rows=_rows(which, order), order=f"ORDER BY {_SIZE}, {order}", max_bytes="%(max_bytes)s")


_OLDEST: LiteralString = _take_in(_ARRIVAL, _RECEIVED)
# A fifth of a batch, in rows and in bytes, holds the oldest envelopes: full batches have passed them over, and without
# it they would wait for ever. Four fifths hold the newest, so most senders are answered in time however many wait.
_FOUR_FIFTHS: LiteralString = _rows(_RECEIVED, _REVERSED, "%(limit)s - %(limit)s / 5")
_NOT_NEWEST: LiteralString = f"{_RECEIVED} AND hash <> ALL (ARRAY(SELECT hash FROM newest))"
_A_FIFTH: LiteralString = _rows(_NOT_NEWEST, _ARRIVAL, "%(limit)s / 5")
_NEWEST: LiteralString = _TAKE.format(
    rows=f"""
        WITH newest AS ({_FOUR_FIFTHS}), oldest AS ({_A_FIFTH})
        SELECT *, 0.8 AS share, now() - due_at AS rank FROM newest
        UNION ALL SELECT *, 0.2, due_at - now() FROM oldest
    """,
    order=f"PARTITION BY share ORDER BY {_SIZE}, rank",
    max_bytes="%(max_bytes)s * share",
)
# Without statistics, PostgreSQL may look for a state by its index, instead of for the keys. `<>` fits no index.
_CAN_BE_TAKEN: LiteralString = f"state <> '{State.PENDING_KEY}'"
_SUSPECTS: LiteralString = f"{_CAN_BE_TAKEN} AND hash = ANY (%(suspects)b::bytea[])"
_ONE: LiteralString = _take_in("hash", _SUSPECTS)
_POSTPONED: LiteralString = _take_in(_REVERSED, _POSTPONED_ONES)
_POSTPONE = f"UPDATE waku_bridge_openenvelope SET state = '{State.POSTPONED}' WHERE hash = ANY (%b::bytea[])"
_RECALL = f"""
    UPDATE waku_bridge_openenvelope SET state = '{State.RECEIVED}', due_at = now()
    WHERE hash = ANY (%b::bytea[]) AND {_CAN_BE_TAKEN}
"""
_STILL_WAITING = f"""
    SELECT hash, {_CAN_BE_TAKEN} AND {_IS_DUE} FROM waku_bridge_openenvelope WHERE hash = ANY (%b::bytea[])
"""
# First and longest delay of an envelope that comes again, in seconds. It doubles each time.
AGAIN_SECONDS, MAX_AGAIN_SECONDS = 1, 300
_AGAIN = """
    UPDATE waku_bridge_openenvelope SET attempt_count = attempt_count + 1,
        due_at = now() + least(%s * 2 ^ least(attempt_count, 20), %s) * interval '1 second'
    WHERE hash = ANY (%b::bytea[])
"""


def take(
    limit: int, nothing_before: datetime = LONG_AGO, *, but: Collection[bytes] = (), is_newest_first: bool = False
) -> Taken:
    """Lock up to ``limit`` envelopes that wait and that no other worker has locked, up to `MAX_BATCH_BYTES`.

    They are the oldest, or, with ``is_newest_first``, four fifths the newest and one fifth the oldest. They are
    returned in order of arrival.
    """
    return _take(_NEWEST if is_newest_first else _OLDEST, limit, but=list(but), nothing_before=nothing_before)


def take_one_of(suspects: Collection[bytes]) -> Taken:
    """Lock one of these envelopes, alone."""
    return _take(_ONE, 1, suspects=list(suspects))


def take_postponed(units: int) -> Taken:
    """Lock the newest of the postponed envelopes, as `take` does: as many as ``units`` may pay for."""
    return _take(_POSTPONED, units, max_bytes=units * BYTES_PER_UNIT)


def postpone(items: Sequence[Item]) -> None:
    """Mark taken envelopes as postponed."""
    if items:
        write(_POSTPONE, [[item.hash for item in items]])


def again(items: Sequence[Item]) -> None:
    """Leave taken envelopes for a second, and twice as long each further time."""
    write(_AGAIN, [AGAIN_SECONDS, MAX_AGAIN_SECONDS, [item.hash for item in items]])


def recall(envelope_hashes: Collection[bytes]) -> None:
    """Mark those of these envelopes as received that were postponed."""
    if envelope_hashes:
        write(_RECALL, [list(envelope_hashes)])


def still_waiting(envelope_hashes: Collection[bytes]) -> dict[bytes, bool]:
    """Return which of these envelopes are undecided, and whether they can be taken now: without its key none can."""
    return dict(fetch(_STILL_WAITING, [list(envelope_hashes)]))


def _take(sql: LiteralString, limit: int, **values: object) -> Taken:
    rows = fetch(sql, {"limit": limit, "max_bytes": MAX_BATCH_BYTES} | values)
    locked = max((locked for *_, locked in rows), default=0)  # the same in every row
    return Taken([Item(*columns) for *columns, _ in rows], is_more_left=locked == limit or locked > len(rows))


# Waiting for keys -----------------------------------------------------------------------------------------------------


def _pending_key() -> QuerySet[OpenEnvelope]:
    """Return the envelopes whose topic has no key yet. Their state is their own, so that later envelopes pass them."""
    return OpenEnvelope.objects.filter(state=State.PENDING_KEY)


def need_keys() -> bool:
    """Return whether envelopes wait for a key."""
    return _pending_key().exists()


def derive_needed_keys(*, budget: query_topics.CpuBudget, limit: int) -> list[bytes]:
    """Derive keys that envelopes wait for, within the budget, and return the hashes of the envelopes that are free.

    The newest come first: their senders may still wait, and a flood of useless envelopes before them delays nobody.
    """
    content_topics = dict(_pending_key().order_by("-due_at").values_list("hash", "content_topic")[:limit])
    missing = query_topics.derive_keys(set(content_topics.values()), budget=budget)
    hashes = [envelope_hash for envelope_hash, topic in content_topics.items() if topic not in missing]
    _pending_key().filter(hash__in=hashes).update(state=State.RECEIVED, due_at=Now())
    return hashes


# Ending ---------------------------------------------------------------------------------------------------------------


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


OVERLOAD = "overload"
_BEYOND_LIMIT: LiteralString = f"""
    hash = ANY (
        ARRAY(
            SELECT hash FROM waku_bridge_openenvelope
            WHERE state = '{State.POSTPONED}' AND (due_at, timestamp_ns) <= (
                SELECT due_at, timestamp_ns FROM waku_bridge_openenvelope
                WHERE state = '{State.POSTPONED}' ORDER BY due_at DESC, timestamp_ns DESC
                OFFSET %(limit)s LIMIT 1
            )
            ORDER BY due_at, timestamp_ns LIMIT %(max_dropped)s FOR UPDATE SKIP LOCKED
        ) || ARRAY(
            SELECT hash FROM waku_bridge_openenvelope
            WHERE state = '{State.PENDING_KEY}' AND due_at <= (
                SELECT due_at FROM waku_bridge_openenvelope
                WHERE state = '{State.PENDING_KEY}' ORDER BY due_at DESC OFFSET %(limit)s LIMIT 1
            )
            ORDER BY due_at LIMIT %(max_dropped)s FOR UPDATE SKIP LOCKED
        )
    )
"""
_DROPPED: LiteralString = ending(_BEYOND_LIMIT, state=f"'{State.DROPPED}'", reason=f"'{OVERLOAD}'")
# Drops the oldest postponed envelopes, and the oldest that wait for a key, beyond a limit for each of the two. Returns
# how many it dropped, whether more than the limit wait unopened, and the time. The oldest envelope that may stay is
# found in the index alone, and no envelope that stays is locked.
BOUND = f"""
    WITH {_DROPPED}
    SELECT (SELECT count(*) FROM ended), EXISTS (
        SELECT FROM waku_bridge_openenvelope
        WHERE state = '{State.RECEIVED}' AND due_at >= {since("Inbox")}
        ORDER BY due_at OFFSET %(limit)s LIMIT 1
    ), clock_timestamp()
"""
_OF_HASHES: LiteralString = "hash = ANY (%(hashes)b::bytea[])"
_DROPPED_NOW: LiteralString = ending(_OF_HASHES, state=f"'{State.DROPPED}'", reason="%(reason)s::text")
_DROP: LiteralString = f"WITH {_DROPPED_NOW} SELECT count(*) FROM ended"
_FAILED: LiteralString = ending(
    f"{_OF_HASHES} AND {_CAN_BE_TAKEN}",
    state=f"'{State.FAILED}'",
    reason="%(reason)s::text",
    fault_id="%(fault)s::bigint",
    payload="payload",
)
_FAIL: LiteralString = f"WITH {_FAILED} SELECT count(*) FROM ended"
_HASHES: LiteralString = "%(hashes)b::bytea[]"
_of = partial(array_value, _HASHES, "envelope.hash")
_IS_DECIDED: LiteralString = f"envelope.hash = ANY ({_HASHES}) AND {_of('states', 'text')} <> '{State.PENDING_KEY}'"
_ENDED: LiteralString = ending(
    _IS_DECIDED,
    kept_if=_of("kept", "boolean"),
    state=_of("states", "text"),
    reason=_of("reasons", "text"),
    message_type=_of("types", "smallint"),
    message_id=_of("ids", "bytea"),
)
_CLOSE = f"""
    WITH without_key AS (
        UPDATE waku_bridge_openenvelope AS envelope SET state = '{State.PENDING_KEY}'
        WHERE envelope.hash = ANY ({_HASHES}) AND {_of("states", "text")} = '{State.PENDING_KEY}'
    ), {_ENDED} SELECT count(*) FROM ended
"""
_FORGET: LiteralString = "DELETE FROM waku_bridge_envelopehash WHERE hash = ANY (%b::bytea[])"


def drop(envelope_hashes: Collection[bytes], reason: str, *, now: datetime) -> None:
    """End those of these envelopes that wait. Their senders get no answer."""
    fetch(_DROP, {"hashes": list(envelope_hashes), "reason": reason, "now": now})


def fail(envelope_hashes: Collection[bytes], reason: str, fault_id: int, *, now: datetime) -> None:
    """End those of these envelopes that can be taken as failed. Their payloads are kept, to process them again."""
    fetch(_FAIL, {"hashes": list(envelope_hashes), "reason": reason, "fault": fault_id, "now": now})


def end(items: Sequence[Item], *, now: datetime) -> None:
    """Write how envelopes ended, in one statement. Their payloads are not needed any more."""
    rows = [
        (item.hash, str(item.state), item.reason, item.type, item.decoded and item.decoded.message_id, item.is_kept)
        for item in items
    ]
    write_rows(_CLOSE, ("hashes", "states", "reasons", "types", "ids", "kept"), rows, now=now)


def forget(envelope_hashes: Sequence[bytes]) -> None:
    """Remove the hashes of envelopes. A further copy counts as a new envelope."""
    if envelope_hashes:
        write(_FORGET, [envelope_hashes])
