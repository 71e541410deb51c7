"""Survival of device tokens: histories in PostgreSQL → lake → Spark, against scipy and lifelines on the same tokens."""

import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import pytest

from registrations.models import RegistrationEvent
from spark_reports.jobs import tables
from spark_reports.jobs.reports import token_lifetime
from spark_reports.jobs.sources import read
from tests.rig.budget import first_everyday
from tests.rig.rows import make_channel

pytestmark = pytest.mark.django_db(transaction=True)
Kind = RegistrationEvent.Kind
Place = tuple[int, str]
WEEKS = 8
ENDS = {Kind.TOKEN_DIED, Kind.EXPIRED}


@dataclass(frozen=True)
class Life:
    """One device token: its place, its first day, its last day at risk, and whether it ended on that day."""

    place: Place
    began_on: date
    last_day: date
    has_ended: bool


@pytest.mark.parametrize("histories", first_everyday(50, 1000))
def test_survival_is_that_of_lifelines_on_random_histories(spark, lake_url, day, export, histories):
    rng = random.Random(1958)
    places = [(1, f"im.status.history-{n}") for n in range(histories)]
    first = day - timedelta(days=7 * WEEKS - 1)
    lives: dict[tuple[str, date], list[Life]] = defaultdict(list)
    events: list[RegistrationEvent] = []
    for place in places:
        make_channel(place)
        made = [event for _ in range(12) for event in random_installation(rng, place, first, day)]
        # Now and then a refresh comes from another app.
        for event in made:
            if event.kind == Kind.REFRESHED and rng.random() < 0.05:
                event.app_topic = rng.choice(places)[1]
        events += made
    RegistrationEvent.objects.bulk_create(events)
    for life in walk(events, day):
        lives[life.place[1], life.began_on - timedelta(days=life.began_on.weekday())].append(life)

    exported = export()
    spells = read(spark, lake_url, tables.TOKEN_SPELLS, [str(day)])
    rows = token_lifetime.transform(spells, {day: exported.events_since}).collect()

    found: dict[tuple[str, date], list[Any]] = defaultdict(list)
    for row in rows:
        found[row.app_topic, row.cohort].append(row)
    assert found.keys() == lives.keys()
    assert len({topic for topic, _ in found}) == histories
    for cohort, weeks in found.items():
        assert_agrees(weeks, lives[cohort])
    largest = {cohort[0]: cohort for cohort in sorted(found, key=lambda cohort: len(lives[cohort]))}
    assert len(largest) == histories
    for cohort in largest.values():
        assert_intervals_agree(found[cohort], lives[cohort])


def random_installation(rng: random.Random, place: Place, first: date, last: date) -> Iterator[RegistrationEvent]:
    """Yield the events of an installation, many on one day: deaths of dead tokens, revivals, changes, the end."""
    at = datetime.combine(first, time(), UTC) + timedelta(hours=rng.randrange(24 * 7 * WEEKS))
    end = datetime.combine(last + timedelta(days=1), time(), UTC)
    pseudonym = UUID(int=rng.getrandbits(128))
    kinds = [Kind.REFRESHED, Kind.SETTINGS_CHANGED, Kind.TOKEN_CHANGED, *ENDS, Kind.REVIVED, Kind.UNREGISTERED]
    kind = Kind.REGISTERED
    while at < end:
        yield RegistrationEvent(kind=kind, pseudonym=pseudonym, token_type=place[0], app_topic=place[1], at=at)
        if kind == Kind.UNREGISTERED:
            return
        at += timedelta(hours=rng.choice([1, 2, 5, 30, 100, 200]))
        [kind] = rng.choices(kinds, [6, 1, 2, 2, 1, 1, 1])


def walk(events: list[RegistrationEvent], day: date) -> Iterator[Life]:
    """Yield the life of each token, computed event by event."""
    histories: dict[UUID, list[RegistrationEvent]] = defaultdict(list)
    for event in events:
        histories[event.pseudonym].append(event)
    for history in histories.values():
        tokens: list[list[RegistrationEvent]] = []
        for event in history:
            if event.kind in {Kind.REGISTERED, Kind.TOKEN_CHANGED}:
                tokens.append([])
            tokens[-1].append(event)
        for token, following in zip(tokens, [*tokens[1:], []], strict=True):
            yield life_of(token, following, day)


def life_of(token: list[RegistrationEvent], following: list[RegistrationEvent], day: date) -> Life:
    born = token[0]
    place = (born.token_type, born.app_topic)
    for event in token[1:]:
        if event.kind in ENDS:
            return Life(place, born.at.date(), event.at.date(), True)
        if event.kind == Kind.UNREGISTERED or (event.token_type, event.app_topic) != place:
            return Life(place, born.at.date(), event.at.date(), False)
    if following:
        return Life(place, born.at.date(), following[0].at.date(), True)
    return Life(place, born.at.date(), day, False)


def survival_by_scipy(durations: list[int], lives: list[Life], ages: list[int]) -> list[float]:
    """Return the survival at these ages, in days. It takes a twentieth of the time that lifelines takes."""
    from scipy.stats import CensoredData, ecdf

    seen = {has_ended: [d for d, life in zip(durations, lives, strict=True) if life.has_ended is has_ended]
            for has_ended in (True, False)}  # fmt: skip
    return list(ecdf(CensoredData(uncensored=seen[True], right=seen[False])).sf.evaluate(ages))


def durations_of(lives: list[Life]) -> list[int]:
    """Return the days on which each token was seen: one of age 0 was seen for one day."""
    return [(life.last_day - life.began_on).days + 1 for life in lives]


def assert_intervals_agree(weeks: list[Any], lives: list[Life]) -> None:
    """Compare the intervals with those of lifelines, which has them for a survival between 0 and 1 only."""
    from lifelines import KaplanMeierFitter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for a cohort in which every token ended
        fitted = KaplanMeierFitter().fit(durations_of(lives), [life.has_ended for life in lives])
    for row in weeks:
        low, high = row.survival_low, row.survival_high
        if 0 < row.survival < 1:
            expected = fitted.confidence_interval_survival_function_.loc[: 7 * row.age_weeks].iloc[-1]
            assert (low, high) == (pytest.approx(expected.iloc[0], abs=1e-6), pytest.approx(expected.iloc[1], abs=1e-6))
        else:
            assert low == high == row.survival


def assert_agrees(weeks: list[Any], lives: list[Life]) -> None:
    """Compare the survival after each week of age."""
    durations = durations_of(lives)
    assert {row.tokens for row in weeks} == {len(lives)}
    assert max(row.age_weeks for row in weeks) == (max(durations) - 1) // 7 + 1
    expected = survival_by_scipy(durations, lives, [7 * row.age_weeks for row in weeks])
    for row, survival in zip(weeks, expected, strict=True):
        age = 7 * row.age_weeks
        assert row.survival == pytest.approx(survival, abs=1e-9), (row, lives)
        assert row.ended == sum(life.has_ended and age - 7 < d <= age for life, d in zip(lives, durations, strict=True))
        assert row.at_risk == sum(max(0, min(7, d - (age - 7))) for d in durations)
