"""Made-up facts of days, written into a lake in the form of the export.

Benchmarks fill a lake with them, and the reports that a demonstration shows are computed from them. The facts of a day
are always the same. Device tokens come and go by a plan, so each day begins as the day before ended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import sqrt
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_reports.jobs import tables
from spark_reports.jobs.tables import HEAVIEST, SCHEMA_VERSION, Table
from spark_reports.lake import File, Kind, Lake, Manifest, arrow_schema, folder_of

# The share of each table among all events. The other tables do not grow with traffic.
SHARES = {"attempts": 0.26, "notifications": 0.22, "notification_times": 0.21, "envelopes": 0.19, "replies": 0.10}
# Platform, app topic and bridge.
Place = tuple[str, str, str]
IOS, ANDROID, OF_XMPP = ("ios", "im.status.ethereum", "waku"), ("android", "", "waku"), ("android", "", "xmpp")
NOWHERE = ("none", "", "waku")
# The shares of pushes, and of places with device tokens their number on the first day, and the share of a cohort that
# ends in a week.
PUSHED: dict[Place, float] = {ANDROID: 0.5, IOS: 0.37, OF_XMPP: 0.1, NOWHERE: 0.03}
TOKENS = {IOS: (1000, 0.010), ANDROID: (1600, 0.018), OF_XMPP: (220, 0.030)}
FIRST_DAY, COHORT, COHORTS = date(2026, 9, 1), 400, 8
# Events for each thousand tokens on an average day.
FLOWS = {"registered": 9, "refreshed": 60, "token_changed": 5, "unregistered": 2, "token_died": 3, "expired": 1}
LOSSES = ("unregistered", "token_died", "expired")
# On an unusual day, this share of the pushes to iPhones finds Apple's gateway busy.
BUSY = 0.15
Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Day:
    """A day of which one table is made, with random numbers that are always the same. ``rows`` is its usual size."""

    date: date
    rows: int
    is_unusual: bool
    random: Random

    def moments(self) -> Iterator[datetime]:
        """Yield times in ascending order, to the minute, as in a table to which rows are only appended."""
        for second in sorted(self.random.randrange(86_400) for _ in range(self.rows)):
            yield self.at() + timedelta(minutes=second // 60)

    def at(self, hour: int = 0) -> datetime:
        return datetime.combine(self.date, time(hour), UTC)

    def placed(self) -> Rows:
        """Yield rows with a time and the place of a push."""
        for at in self.moments():
            yield {"at": at, **_placed(self.one_of(PUSHED))}

    def one_of(self, weights: "dict[Any, float]") -> Any:
        return self.random.choices([*weights], [*weights.values()])[0]

    def duration_us(self, median_ms: float) -> int:
        """Return microseconds, with a long tail."""
        return round(1000 * median_ms / 1.414 / sqrt(self.random.random() + 1e-7))

    def flows(self, place: Place, *, days_ago: int = 0) -> dict[str, int]:
        """Return the number of tokens for each kind of event."""
        chance = Random(f"{self.date - timedelta(days_ago)} {place}")  # noqa: S311 - made up
        return {kind: round(TOKENS[place][0] * n / 1000 * chance.uniform(0.6, 1.4)) for kind, n in FLOWS.items()}

    def growth(self, place: Place, *, days_ago: int = 0) -> int:
        flows = self.flows(place, days_ago=days_ago)
        return flows["registered"] - sum(flows[kind] for kind in LOSSES)


def write_day(
    lake: Lake, day: date, events: int, *, times: int = 1, since: date | None = None, is_unusual: bool = False
) -> Manifest:
    """Write and publish a complete day with its manifest. The rows of its ``events`` are repeated ``times`` times.

    The stocks of a day with repeated rows do not reconcile. ``since`` is the first day of which all events of
    registrations are known, by default the day itself.
    """

    def write(table: Table) -> File:
        rows = round(events * SHARES.get(table.name, 0))
        made = MAKERS[table.name](Day(day, rows, is_unusual, Random(f"{day} {table.name}")))  # noqa: S311 - made up
        return _write(lake, day, table, list(made), times if rows or table is tables.REGISTRATION_EVENTS else 1)

    known_since, now = (since or day).isoformat(), datetime.now(UTC).isoformat()
    files = {table.name: [write(table)] for table in tables.EVENT_TABLES}
    manifest = Manifest(day.isoformat(), SCHEMA_VERSION, now, "made-up", events_since=known_since, tables=files)
    lake.publish(Kind.FACTS, day, manifest)
    return manifest


def _write(lake: Lake, day: date, table: Table, rows: Sequence[dict[str, Any]], times: int) -> File:
    path, schema = f"{folder_of(Kind.FACTS, table, day)}/made-up.parquet", arrow_schema(table)
    made = pa.Table.from_pylist(list(rows), schema)
    with lake.writing(path) as out, pq.ParquetWriter(out, schema, compression="zstd") as parquet:
        for _ in range(times):
            parquet.write_table(made)
    return lake.describe(path, len(rows) * times)


ENDS = {
    ("delivered", ""): 0.93,
    ("transient", "unavailable"): 0.04,
    ("dead", "unregistered"): 0.02,
    ("ambiguous", "timeout"): 0.007,
    ("config", "bad_certificate"): 0.003,
}


def attempts(day: Day) -> Rows:
    for row in day.placed():
        outcome, code = day.one_of(ENDS)
        if day.is_unusual and row["platform"] == "ios" and day.random.random() < BUSY:
            outcome, code = "transient", "TooManyRequests"
        number = day.one_of({1: 0.92, 2: 0.06, 3: 0.02})
        times = {"latency_us": day.duration_us(80), "queued_us": day.duration_us(20) if number == 1 else None}
        yield {**row, "outcome": outcome, "code": code, "number": number, **times}


REPORTS = {
    ("delivered", "success"): 0.9,
    ("refused", "wrong_token"): 0.05,
    ("suppressed", "success"): 0.03,
    ("dead_token", "not_registered"): 0.02,
}


def notifications(day: Day) -> Rows:
    for row in day.placed():
        state, report = day.one_of(REPORTS)
        yield {**row, "state": state, "report": report}


def notification_times(day: Day) -> Rows:
    for row in day.placed():
        times = {"delivered_us": day.duration_us(150), "answered_us": day.duration_us(200)}
        yield {**row, **times, "deadline_us": 2_000_000}


def actors(_day: Day) -> Rows:
    """Yield the heaviest actors with pseudonyms, and the others in groups by their number of notifications."""
    for n in range(400):
        rank, each, is_named = n // 2 + 1, 400 // (n // 2 + 1), n // 2 < HEAVIEST
        role, together = ("sender", "recipient")[n % 2], 1 if is_named else 3
        who = {"role": role, "rank": rank if is_named else None, "actor": n << 40 if is_named else None}
        tried = {"tried": each * together, "attempts": each * together, "refused": 0}
        yield {**who, "actors": together, "notifications": each, **tried}


ENVELOPES = {
    ("request", "processed", ""): 0.8,
    ("registration", "processed", ""): 0.0299,
    ("registration", "processed", "stale_version"): 0.0001,
    ("query", "processed", "nothing_found"): 0.06,
    ("contact_code_advertisement", "processed", ""): 0.1,
    ("unknown", "dropped", "not_decryptable"): 0.01,
}


def envelopes(day: Day) -> Rows:
    for at in day.moments():
        kind, state, reason = day.one_of(ENVELOPES)
        yield {"at": at, "type": kind, "state": state, "reason": reason, "processed_us": day.duration_us(30)}


# State, attempts and repeats.
REPLIES = {("confirmed", 1, 0): 0.998, ("unconfirmed", 5, 4): 0.001, ("abandoned", 3, 0): 0.001}


def replies(day: Day) -> Rows:
    for at in day.moments():
        state, attempts, repeats = day.one_of(REPLIES)
        kind = day.one_of({"response": 0.9, "query_response": 0.06, "registration_response": 0.04})
        published_us, since_received_us = day.duration_us(25), day.duration_us(250)
        times = {"published_us": published_us, "since_received_us": since_received_us} if state == "confirmed" else {}
        counts = {"attempts": attempts, "repeats": repeats, "deadline_us": 2_000_000}
        yield {"at": at, "type": kind, "state": state, **counts, **times}


def registration_events(day: Day) -> Rows:
    for place in TOKENS:
        before = {"previous_platform": place[0], "previous_app_topic": place[1]}
        for kind, number in day.flows(place).items():
            is_first = kind == "registered"
            states = {"is_first": is_first, "was_active": not is_first, "is_active": kind not in LOSSES}
            for n in range(number):
                yield {**_placed(place), **before, **states, "at": day.at(n % 24), "kind": kind}


def active_tokens(day: Day) -> Rows:
    for place, (tokens, _) in TOKENS.items():
        age = (day.date - FIRST_DAY).days
        at_start = tokens + sum(day.growth(place, days_ago=days_ago) for days_ago in range(1, age + 1))
        yield {**_placed(place), "at_start": at_start, "at_end": at_start + day.growth(place)}


def token_spells(day: Day) -> Rows:
    for place in TOKENS:
        for weeks in range(COHORTS):
            yield from _cohort(day.date, place, weeks)


def _cohort(day: date, place: Place, weeks: int) -> Rows:
    """Yield the spells of the tokens that began ``weeks`` ago. Some end in each week, and fewer in later weeks."""
    began_on = day - timedelta(days=day.weekday() + 7 * weeks)
    begun, left = {**_placed(place), "began_on": began_on}, COHORT + 7 * weeks
    for week in range((day - began_on).days // 7):
        ended = round(left * TOKENS[place][1] * (1 + weeks % 5 / 10))
        last_day = began_on + timedelta(days=7 * week + 3)
        yield {**begun, "last_day": last_day, "end": "ended", "tokens": ended}
        yield {**begun, "last_day": last_day, "end": "left", "tokens": ended // 3}
        left -= ended + ended // 3
    yield {**begun, "last_day": day, "end": "alive", "tokens": left}


def unknown_errors(day: Day) -> Rows:
    """Yield one error that comes every day, and one that is new on an unusual day."""
    often, first = 6 * (day.date - FIRST_DAY).days, datetime.combine(FIRST_DAY, time(3), UTC)
    seen = {"platform": "ios", "last_seen_at": day.at(12)}
    yield {**seen, "signature": "connect: connection refused", "total": often, "first_seen_at": first}
    if day.is_unusual:
        yield {**seen, "signature": "apns: <n> streams are too many", "total": 23, "first_seen_at": day.at(3)}


OF_TRAFFIC = (attempts, notifications, notification_times, actors, envelopes, replies)
OF_TOKENS = (registration_events, active_tokens, token_spells, unknown_errors)
# The functions that make the rows of a table, by its name.
MAKERS: dict[str, Callable[[Day], Rows]] = {make.__name__: make for make in (*OF_TRAFFIC, *OF_TOKENS)}


def _placed(place: Place) -> dict[str, Any]:
    return dict(zip(("platform", "app_topic", "bridge"), place, strict=True))
