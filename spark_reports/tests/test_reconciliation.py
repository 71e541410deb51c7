"""Token churn of random events: PostgreSQL → lake → Spark, compared with counts kept while the events were made."""

import io
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from spark_reports.export.days import export_day
from spark_reports.jobs import tables
from spark_reports.jobs.reports import token_churn
from spark_reports.jobs.sources import read
from spark_reports.lake import Kind, Lake
from spark_reports.nights.closing import last_closed_day
from spark_reports.running.runs import make_plan
from tests.rig.budget import first_everyday
from tests.rig.rows import make_channel

DAYS = 3
PLACES = [(1, "im.status.ethereum"), (2, ""), (1, "im.status.desktop")]
NAMES = {1: "ios", 2: "android"}
TABLE = "registrations_registrationevent"
OUT = {"unregistered": "unregistered", "token_died": "died", "expired": "expired"}


@dataclass
class Fleet:
    """Installations that change state at random. ``flows`` and ``stocks`` have the counts by day and place."""

    random: random.Random
    flows: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    stocks: dict[date, Counter[tuple[int, str]]] = field(default_factory=dict)
    active: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.pseudonyms = [UUID(int=self.random.getrandbits(128)) for _ in range(60_000)]
        self.places: list[tuple[int, str] | None] = [None] * len(
            self.pseudonyms
        )  # the place where each installation is active
        self.seen = [False] * len(self.pseudonyms)

    def live(self, day: date, events: int, out: io.StringIO) -> None:
        self.stocks[day] = self.active.copy()
        midnight = datetime.combine(day, time(), UTC)
        # Coarse times, so that many installations have several events at the same moment.
        for seconds in sorted(self.random.choices(range(86_400), k=events)):
            n = self.random.randrange(len(self.pseudonyms))
            kind, place = self._next(day, n)
            at = midnight + timedelta(seconds=seconds)
            out.write(f"{kind}\t{self.pseudonyms[n]}\t{place[0]}\t{place[1]}\twaku\t{at.isoformat()}\n")

    def _next(self, day: date, n: int) -> tuple[str, tuple[int, str]]:
        place = self.places[n]
        if place is None:
            return self._arrive(day, n)
        draw = self.random.random()
        if draw < 0.15:
            return self._leave(day, n, place, self.random.choice(list(OUT)))
        if draw < 0.2:
            return self._move(day, n, place, self.random.choice(PLACES))
        kind = "token_changed" if draw < 0.3 else self.random.choice(["refreshed", "settings_changed"])
        self.flows[day, place, "token_changed" if kind == "token_changed" else "refreshed"] += 1
        return kind, place

    def _arrive(self, day: date, n: int) -> tuple[str, tuple[int, str]]:
        place = self.random.choice(PLACES)
        self.flows[day, place, "returned" if self.seen[n] else "new"] += 1
        kind = self.random.choice(["refreshed", "token_changed", "revived"]) if self.seen[n] else "registered"
        self.seen[n], self.places[n] = True, place
        self.active[place] += 1
        return kind, place

    def _leave(self, day: date, n: int, place: tuple[int, str], kind: str) -> tuple[str, tuple[int, str]]:
        self.flows[day, place, OUT[kind]] += 1
        self.places[n] = None
        self.active[place] -= 1
        return kind, place

    def _move(self, day: date, n: int, place: tuple[int, str], other: tuple[int, str]) -> tuple[str, tuple[int, str]]:
        if other == place:
            self.flows[day, place, "token_changed"] += 1
            return "token_changed", place
        self.flows[day, place, "moved_out"] += 1
        self.flows[day, other, "moved_in"] += 1
        self.places[n] = other
        self.active[place] -= 1
        self.active[other] += 1
        return "token_changed", other


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", first_everyday(6_000, 1_000_000))
def test_random_events_reconcile(spark: Any, lake_url: str, count: int) -> None:
    last = last_closed_day(timezone.now())
    days = [last - timedelta(days=n) for n in reversed(range(DAYS))]
    fleet = Fleet(random.Random(20))
    for place in PLACES:
        make_channel(place)
    for day in days:
        store(fleet, day, count // DAYS)
    lake = Lake(lake_url)
    now = timezone.now()
    manifests = {day: export_day(day, lake, now=now, on_rows=lambda _table, _rows: None) for day in days}
    plan = make_plan(lake, manifests, "incoming/x")
    assert sum(m.rows["registration_events"] for m in manifests.values()) == count // DAYS * DAYS
    assert lake.manifest(Kind.FACTS, last) == manifests[last]

    events, active = (
        read(spark, lake_url, plan.facts[t.name], t) for t in (tables.REGISTRATION_EVENTS, tables.ACTIVE_TOKENS)
    )
    rows = token_churn.transform(events, active).collect()

    assert {row.unexplained for row in rows} == {0}
    names = [*token_churn.IN, *token_churn.STAYED, *token_churn.OUT]
    by_place = {(NAMES[place[0]], place[1]): place for place in PLACES}
    assert len(rows) == DAYS * len(PLACES)
    for row in rows:
        place = by_place[row.platform, row.app_topic]
        assert {name: row[name] for name in names} == {name: fleet.flows[row.day, place, name] for name in names}
        assert row.active_at_start == fleet.stocks[row.day][place]


def store(fleet: Fleet, day: date, events: int) -> None:
    lines = io.StringIO()
    fleet.live(day, events, lines)
    with connection.cursor() as cursor:
        statement = f"COPY {TABLE} (kind, pseudonym, token_type, app_topic, bridge, at) FROM STDIN"
        with cursor.cursor.copy(statement) as copy:
            copy.write(lines.getvalue())
        cursor.execute(f"ANALYZE {TABLE}")
