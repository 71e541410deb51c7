"""Made-up facts of one day, written into a lake fast: columns of random numbers, in the form of the export.

Benchmarks fill a lake with them. So does the demonstration (`reports`), whose tokens come and go by a plan.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_reports.jobs import tables
from spark_reports.jobs.tables import SCHEMA_VERSION, Table
from spark_reports.lake import File, Kind, Lake, Manifest, arrow_schema, folder_of

# The share of each table among all events.
SHARES = {
    "attempts": 0.26,
    "notifications": 0.22,
    "notification_times": 0.21,
    "envelopes": 0.19,
    "replies": 0.10,
    "registration_events": 0.02,
}
# Numbers of rows of the tables that do not grow with traffic.
SNAPSHOTS = {"actors": 400, "active_tokens": 20, "token_spells": 5000, "unknown_errors": 200}
CHUNK_ROWS = 1_000_000
DAY_US = 86_400 * 10**6
CHANNELS = [
    ("android", "", "waku"),
    ("ios", "im.status.ethereum", "waku"),
    ("ios", "im.status.ethereum.pr", "waku"),
    ("android", "", "xmpp"),
    ("none", "", "waku"),
]
CHANNEL_WEIGHTS = [0.5, 0.3, 0.07, 0.1, 0.03]
Columns = dict[str, pa.Array]
# A function that makes the columns of a table, for a day, a number of rows and a number of people.
Maker = Callable[[date, int, int], Columns]


def write_day(
    lake: Lake, day: date, events: int, makers: Mapping[str, Maker] | None = None, *, since: date | None = None
) -> Manifest:
    """Write and publish a complete day with its manifest. ``makers`` replace those of some tables.

    ``since`` is the first day of which all events of registrations are known, by default the day itself.
    """
    of_table = MAKERS | dict(makers or {})
    files = {table.name: [_write(lake, day, table, events, of_table[table.name])] for table in tables.EVENT_TABLES}
    known_since, now = (since or day).isoformat(), datetime.now(UTC).isoformat()
    manifest = Manifest(day.isoformat(), SCHEMA_VERSION, now, "made-up", events_since=known_since, tables=files)
    lake.publish(Kind.FACTS, day, manifest)
    return manifest


def _write(lake: Lake, day: date, table: Table, events: int, make: Maker) -> File:
    rows, written = SNAPSHOTS.get(table.name) or round(events * SHARES[table.name]), 0
    path = f"{folder_of(Kind.FACTS, table, day)}/made-up.parquet"
    schema = arrow_schema(table)
    with lake.writing(path) as out, pq.ParquetWriter(out, schema, compression="zstd") as parquet:
        for start in range(0, rows, CHUNK_ROWS):
            columns = make(day, min(CHUNK_ROWS, rows - start), max(1000, events // 50))
            part = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
            parquet.write_table(part)
            written += part.num_rows
    return lake.describe(path, written)


def _attempts(day: date, rows: int, _actors: int) -> Columns:
    ended = _pick(["delivered", "transient", "dead", "ambiguous", "config"], [0.93, 0.04, 0.02, 0.007, 0.003], rows)
    outcomes = ["delivered", "transient", "dead", "ambiguous", "config"]
    codes = pa.array(["", "unavailable", "unregistered", "timeout", "bad_certificate"])
    first = _pick([1, 2, 3], [0.92, 0.06, 0.02], rows)
    return _placed(day, rows) | {
        "number": pa.array([1, 2, 3], pa.int32()).take(first),
        "outcome": pa.array(outcomes).take(ended),
        "code": codes.take(ended),
        "latency_us": pc.multiply(pc.divide(_durations(rows, 80), 1000), 1000),
        "queued_us": pc.if_else(pc.equal(first, 0), _durations(rows, 20), pa.scalar(None, pa.int64())),
    }


def _notifications(day: date, rows: int, _actors: int) -> Columns:
    state = _pick(["delivered", "refused", "suppressed", "dead_token"], [0.9, 0.05, 0.03, 0.02], rows)
    return _placed(day, rows) | {
        "state": pa.array(["delivered", "refused", "suppressed", "dead_token"]).take(state),
        "report": pa.array(["success", "wrong_token", "success", "not_registered"]).take(state),
    }


def _actors(_day: date, rows: int, actors: int) -> Columns:
    """Return the heaviest actors with pseudonyms, and the others in groups by their number of notifications."""
    ranks = [n // 2 + 1 for n in range(rows)]
    is_named = [rank <= tables.HEAVIEST for rank in ranks]
    each = pa.array([rows // rank for rank in ranks])
    together = pa.array([1 if named else max(1, actors // rows) for named in is_named])
    return {
        "role": pa.array(["sender", "recipient"] * (rows // 2)),
        "rank": pa.array([rank if named else None for rank, named in zip(ranks, is_named, strict=True)], pa.int32()),
        "actor": pa.array([n << 40 if named else None for n, named in enumerate(is_named)], pa.int64()),
        "actors": together,
        "notifications": each,
        "tried": pc.multiply(each, together),
        "attempts": pc.multiply(each, together),
        "refused": _constant(0, rows),
    }


def _notification_times(day: date, rows: int, _actors: int) -> Columns:
    return _placed(day, rows) | {
        "delivered_us": _durations(rows, 150),
        "answered_us": _durations(rows, 200),
        "deadline_us": _constant(2_000_000, rows),
    }


def _envelopes(day: date, rows: int, _actors: int) -> Columns:
    types = ["request", "registration", "registration", "query", "contact_code_advertisement", "unknown"]
    kind = _pick(types, [0.8, 0.0299, 0.0001, 0.06, 0.1, 0.01], rows)
    return {
        "at": _moments(day, rows),
        "type": pa.array(types).take(kind),
        "state": pa.array(["processed", "processed", "processed", "processed", "processed", "dropped"]).take(kind),
        "reason": pa.array(["", "", "stale_version", "nothing_found", "", "not_decryptable"]).take(kind),
        "processed_us": _durations(rows, 30),
    }


def _replies(day: date, rows: int, _actors: int) -> Columns:
    states = ["confirmed", "unconfirmed", "abandoned"]
    state = _pick(states, [0.998, 0.001, 0.001], rows)
    times = pa.array([1, 5, 3], pa.int32()).take(state)
    repeats = pa.array([0, 4, 0], pa.int32()).take(state)
    is_measured, never = pc.equal(state, 0), pa.scalar(None, pa.int64())
    return {
        "at": _moments(day, rows),
        "type": pa.array(["response", "query_response", "registration_response"]).take(
            _pick([0, 1, 2], [0.9, 0.06, 0.04], rows)
        ),
        "state": pa.array(states).take(state),
        "attempts": times,
        "repeats": repeats,
        "published_us": pc.if_else(is_measured, _durations(rows, 25), never),
        "since_received_us": pc.if_else(is_measured, _durations(rows, 250), never),
        "deadline_us": _constant(2_000_000, rows),
    }


def _registration_events(day: date, rows: int, _actors: int) -> Columns:
    """Return events, most of them refreshes.

    The stocks of a made-up day do not reconcile, and nothing here checks them.
    """
    kinds = ["refreshed", "registered", "token_changed", "unregistered", "token_died"]
    kind = _pick(kinds, [0.8, 0.08, 0.06, 0.03, 0.03], rows)
    placed = _placed(day, rows)
    return placed | {
        "kind": pa.array(kinds).take(kind),
        "is_first": pa.array([False, True, False, False, False]).take(kind),
        "was_active": pa.array([True, False, True, True, True]).take(kind),
        "is_active": pa.array([True, True, True, False, False]).take(kind),
        "previous_platform": placed["platform"],
        "previous_app_topic": placed["app_topic"],
    }


def _active_tokens(_day: date, rows: int, actors: int) -> Columns:
    at_start = _integers(rows, max(1, 2 * actors // rows))
    return _channel_columns(rows) | {"at_start": at_start, "at_end": at_start}


def _token_spells(day: date, rows: int, actors: int) -> Columns:
    began_on = _days_before(day, rows, 170)
    return _channel_columns(rows) | {
        "began_on": began_on,
        "last_day": pa.array([day], pa.date32()).take(_constant(0, rows)),
        "end": pa.array(["alive", "ended", "left"]).take(_pick([0, 1, 2], [0.8, 0.15, 0.05], rows)),
        "tokens": _integers(rows, max(2, actors // rows)),
    }


def _unknown_errors(day: date, rows: int, _actors: int) -> Columns:
    moments = _moments(day, rows)
    signatures = pa.array([f"gateway said something new: {n}" for n in range(rows)])
    return {
        "platform": _channel_columns(rows)["platform"],
        "signature": signatures,
        "total": _integers(rows, 1000),
        "first_seen_at": moments,
        "last_seen_at": moments,
    }


MAKERS: dict[str, Maker] = {
    "attempts": _attempts,
    "notifications": _notifications,
    "actors": _actors,
    "notification_times": _notification_times,
    "envelopes": _envelopes,
    "replies": _replies,
    "registration_events": _registration_events,
    "active_tokens": _active_tokens,
    "token_spells": _token_spells,
    "unknown_errors": _unknown_errors,
}


def _placed(day: date, rows: int) -> Columns:
    return {"at": _moments(day, rows)} | _channel_columns(rows)


def _channel_columns(rows: int) -> Columns:
    index = _pick(CHANNELS, CHANNEL_WEIGHTS, rows)
    return {
        "platform": pa.array([platform for platform, _, _ in CHANNELS]).take(index),
        "app_topic": pa.array([topic for _, topic, _ in CHANNELS]).take(index),
        "bridge": pa.array([name for _, _, name in CHANNELS]).take(index),
    }


def _moments(day: date, rows: int) -> pa.Array:
    """Return times in ascending order, to the minute, as in a table to which rows are only appended."""
    start = int(datetime.combine(day, time(), UTC).timestamp()) * 10**6
    step = pc.multiply(pc.random(rows), float(DAY_US))
    minutes = pc.divide(pc.cast(pc.floor(step), pa.int64()), 60 * 10**6)
    moments = pc.add(pc.multiply(minutes, 60 * 10**6), start)
    return pc.cast(moments.take(pc.sort_indices(moments)), pa.timestamp("us", tz="UTC"))


def _pick(values: Sequence[object], weights: Sequence[float], rows: int) -> pa.Array:
    """Return random indices into ``values``."""
    draw = pc.random(rows)
    index = _constant(0, rows)
    total = 0.0
    for _, weight in zip(values[:-1], weights[:-1], strict=True):
        total += weight
        index = pc.add(index, pc.cast(pc.greater_equal(draw, total), pa.int64()))
    return index


def _durations(rows: int, median_ms: float) -> pa.Array:
    """Return microseconds with a long tail."""
    tail = pc.divide(pa.scalar(1.0), pc.sqrt(pc.add(pc.random(rows), 1e-7)))
    return pc.cast(pc.floor(pc.multiply(tail, 1000 * median_ms / 1.414)), pa.int64())


def _days_before(day: date, rows: int, at_most: int) -> pa.Array:
    since = pc.subtract(_constant((day - date(1970, 1, 1)).days, rows), _integers(rows, at_most))
    return pc.cast(pc.cast(since, pa.int32()), pa.date32())


def _integers(rows: int, below: int) -> pa.Array:
    return pc.cast(pc.floor(pc.multiply(pc.random(rows), float(below))), pa.int64())


def _constant(value: int, rows: int) -> pa.Array:
    return pa.array([value], pa.int64()).take(pa.nulls(rows, pa.int64()).fill_null(0))
