"""Reports of made-up facts, so that a demonstration has charts in its first minutes.

Spark computes them as it computes real ones, from a lake of their own that is removed afterwards. No made-up row gets
into the tables of real traffic or into the lake of real facts. The reports are marked as made up, and the first real
ones replace them.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from django.conf import settings

from embedded.demo import facts
from embedded.demo.facts import Columns
from kit.db.clock import database_now
from spark_reports.jobs import tables
from spark_reports.jobs.tables import LIFETIME_WEEKS, Table
from spark_reports.lake import Lake, Manifest, arrow_schema
from spark_reports.models import PublishedDay
from spark_reports.nights.closing import last_closed_day
from spark_reports.running.runs import Progress, Source, run_days

DAYS = 14
WORKDAY_EVENTS, WEEKEND_EVENTS = 24_000, 15_000
# By platform, app topic and bridge: the tokens at the beginning, and the share of a cohort that ends in a week.
PLACES = {
    ("ios", "im.status.ethereum", "waku"): (4_000, 0.010),
    ("android", "", "waku"): (6_500, 0.018),
    ("android", "", "xmpp"): (900, 0.030),
}
Place = tuple[str, str, str]
# Events for each thousand tokens on an average day.
FLOWS = {"registered": 9, "refreshed": 60, "token_changed": 5, "unregistered": 2, "token_died": 3, "expired": 1}
LOSSES = ("unregistered", "token_died", "expired")
COHORT = 400
# On the last day, this share of the pushes to iPhones finds Apple's gateway busy.
BUSY = 0.15


def make_reports() -> None:
    """Publish made-up reports of two weeks, unless there are any reports. Raises RunError."""
    folder = settings.DATA_DIR / "made-up-lake"
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
    if PublishedDay.objects.exists():
        return
    last = last_closed_day(database_now())
    days = [last - timedelta(days=n) for n in reversed(range(DAYS))]
    try:
        run_days(Source(str(folder), Fleet(days).bring, is_made_up=True), days, progress=Progress())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The devices of these days. Their events follow from the day, so each day begins as the last one ended."""

    days: Sequence[date]

    def bring(self, day: date, lake: Lake, *, now: datetime, on_rows: Any) -> Manifest:  # noqa: ARG002 - as `export_day`
        """Write the facts of a day into the lake."""
        events = WEEKEND_EVENTS if day.weekday() >= 5 else WORKDAY_EVENTS
        makers = {
            tables.ATTEMPTS.name: self._attempts,
            tables.REGISTRATION_EVENTS.name: self._registration_events,
            tables.ACTIVE_TOKENS.name: self._active_tokens,
            tables.TOKEN_SPELLS.name: self._token_spells,
            tables.UNKNOWN_ERRORS.name: self._unknown_errors,
        }
        return facts.write_day(lake, day, events, makers, since=day - timedelta(weeks=LIFETIME_WEEKS))

    def _attempts(self, day: date, rows: int, people: int) -> Columns:
        columns = facts.MAKERS[tables.ATTEMPTS.name](day, rows, people)
        if day < self.days[-1]:
            return columns
        is_busy = pc.and_(pc.equal(columns["platform"], "ios"), pc.less(pc.random(rows), BUSY))
        outcome = pc.if_else(is_busy, "transient", columns["outcome"])
        return columns | {"outcome": outcome, "code": pc.if_else(is_busy, "TooManyRequests", columns["code"])}

    def _registration_events(self, day: date, _rows: int, _people: int) -> Columns:
        return _columns(tables.REGISTRATION_EVENTS, [event for place in PLACES for event in _events(day, place)])

    def _active_tokens(self, day: date, _rows: int, _people: int) -> Columns:
        at_start = {place: self._active_at_start(day, place) for place in PLACES}
        rows = [
            _placed(place) | {"at_start": number, "at_end": number + _growth(day, place)}
            for place, number in at_start.items()
        ]
        return _columns(tables.ACTIVE_TOKENS, rows)

    def _active_at_start(self, day: date, place: Place) -> int:
        return PLACES[place][0] + sum(_growth(earlier, place) for earlier in self.days if earlier < day)

    def _token_spells(self, day: date, _rows: int, _people: int) -> Columns:
        spells = [spell for place in PLACES for weeks in range(LIFETIME_WEEKS) for spell in _cohort(day, place, weeks)]
        return _columns(tables.TOKEN_SPELLS, spells)

    def _unknown_errors(self, day: date, _rows: int, _people: int) -> Columns:
        """Return one error that comes every day and one that is new on the last day."""
        number, noon = self.days.index(day), _at(day, 12)
        often = {"signature": "connect: connection refused", "total": 40 + 6 * number}
        rows = [often | {"first_seen_at": _at(self.days[0], 3)}]
        if day == self.days[-1]:
            rows.append({"signature": "apns: <n> streams are too many", "total": 23, "first_seen_at": noon})
        return _columns(tables.UNKNOWN_ERRORS, [row | {"platform": "ios", "last_seen_at": noon} for row in rows])


def _flows(day: date, place: Place) -> dict[str, int]:
    """Return the number of tokens for each kind of event on a day. It is always the same for the same day."""
    chance = Random(f"{day} {place}")  # noqa: S311 - made up
    tokens = PLACES[place][0]
    return {kind: round(tokens * share / 1000 * chance.uniform(0.6, 1.4)) for kind, share in FLOWS.items()}


def _growth(day: date, place: Place) -> int:
    flows = _flows(day, place)
    return flows["registered"] - sum(flows[kind] for kind in LOSSES)


def _events(day: date, place: Place) -> Iterator[dict[str, Any]]:
    before = {"previous_platform": place[0], "previous_app_topic": place[1]}
    for kind, number in _flows(day, place).items():
        is_first = kind == "registered"
        states = {"is_first": is_first, "was_active": not is_first, "is_active": kind not in LOSSES}
        for n in range(number):
            yield _placed(place) | before | states | {"at": _at(day, n % 24), "kind": kind}


def _cohort(day: date, place: Place, weeks: int) -> Iterator[dict[str, Any]]:
    """Yield the spells of the tokens that began ``weeks`` ago. Some end in each week, and fewer in later weeks."""
    began_on = day - timedelta(days=day.weekday() + 7 * weeks)
    begun, left = _placed(place) | {"began_on": began_on}, COHORT + 7 * weeks
    for week in range((day - began_on).days // 7):
        ended = round(left * PLACES[place][1] * (1 + weeks % 5 / 10))
        last_day = began_on + timedelta(days=7 * week + 3)
        yield begun | {"last_day": last_day, "end": "ended", "tokens": ended}
        yield begun | {"last_day": last_day, "end": "left", "tokens": ended // 3}
        left -= ended + ended // 3
    yield begun | {"last_day": day, "end": "alive", "tokens": left}


def _placed(place: Place) -> dict[str, Any]:
    return dict(zip(("platform", "app_topic", "bridge"), place, strict=True))


def _at(day: date, hour: int) -> datetime:
    return datetime.combine(day, time(hour), UTC)


def _columns(table: Table, rows: Sequence[Mapping[str, Any]]) -> Columns:
    made = pa.Table.from_pylist([dict(row) for row in rows], arrow_schema(table))
    return {name: made[name] for name in made.column_names}
