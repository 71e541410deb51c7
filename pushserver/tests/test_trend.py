"""Charts of an hour, a day and a week: sums, and percentiles from merged histograms."""

import random
from datetime import UTC, datetime, timedelta
from math import ceil

import pytest

from notifications.models import EndedAttempt
from pushserver.console.health import traffic
from pushserver.console.health.history import BUCKETS_PER_DOUBLING, PERIODS, read_counts
from pushserver.console.models import Count
from tests.rig import rows

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR, DAY, WEEK = PERIODS
# Half the width of a bucket, as a share of the value.
WIDTH = 2 ** (0.5 / BUCKETS_PER_DOUBLING) - 1


def push(at: datetime, waits: list[int]) -> None:
    """Make one attempt for each wait. Each was delivered at once."""
    first = rows.make_attempt(rows.make_notification(at=at), outcome="delivered", began_at=at, ended_at=at, waited_ms=1)
    columns = {field.attname: getattr(first, field.attname) for field in EndedAttempt._meta.concrete_fields}
    del columns["id"]
    for number, wait in enumerate(waits):
        EndedAttempt(**columns | {"number": number + 2, "waited_ms": wait}).save(force_insert=True)
    EndedAttempt.objects.filter(number=1).delete()


def test_a_percentile_of_a_week_is_that_of_its_pushes_within_half_a_bucket() -> None:
    chance = random.Random(7)
    waits = [round(chance.lognormvariate(4, 1.2)) for _ in range(400)]
    push(NOON + timedelta(minutes=3), waits[:150])
    push(NOON + timedelta(minutes=70), waits[150:])
    for minute in range(120):
        traffic.count(NOON + minute * traffic.MINUTE, now=NOON + (minute + 1) * traffic.MINUTE)
    until = NOON + timedelta(hours=2, minutes=6)
    traffic.add_up(now=until)

    for period in (DAY, WEEK):
        found = read_counts(period, until)
        for share in (0.5, 0.95, 0.99):
            exact = sorted(waits)[ceil(len(waits) * share) - 1]
            assert found.wait_of_all(share) == pytest.approx(exact, rel=WIDTH)
        assert sum(filter(None, found.ended("delivered"))) == 400
    week = read_counts(WEEK, until)
    assert week.ended("delivered")[-3:] == [None, 150, 250]
    assert week.wait(0.99)[-3] is None
    assert len(week.begins_at) == 7 * 24


def test_an_hour_has_the_sum_of_its_ends_and_the_most_that_waited() -> None:
    rows.make_notification(at=NOON)  # still waits
    for minute in range(60):
        begin_at = NOON + minute * traffic.MINUTE
        traffic.count(begin_at, now=begin_at + traffic.MINUTE)
        Count.objects.create(figure="ends", begin_at=begin_at, outcome="expired", count=2)
    Count.objects.filter(figure="waiting", begin_at=NOON + timedelta(minutes=9)).update(count=70)
    until = NOON + timedelta(hours=1, minutes=6)
    traffic.add_up(now=until)

    week, hour = read_counts(WEEK, until), read_counts(HOUR, NOON + timedelta(hours=1))
    assert (week.ended("expired")[-1], week.waiting()[-1]) == (120, 70)
    assert hour.ended("expired") == [2] * 60
    assert {*hour.waiting()} == {1, 70}


def test_what_waits_is_not_counted_for_a_minute_that_is_long_over() -> None:
    traffic.count(NOON, now=NOON + timedelta(minutes=9))
    found = read_counts(HOUR, NOON + timedelta(minutes=30))
    assert {*found.waiting()} == {None}
    assert [number for number in found.ended("delivered") if number is not None] == [0]
