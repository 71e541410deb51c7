from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from kit.health.indicators import State
from kit.health.space import SIZE_OF_DATABASE, Past, judge
from pushserver.history import hours
from pushserver.history.volumes import PAST, volumes
from pushserver.indicators.kinds.server import DISK
from pushserver.models import AttemptMinute, BridgeMinute, TrafficHour, TrafficMinute

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
pytestmark = pytest.mark.django_db


def count_minutes(begin_at: datetime, minutes: int, *, requests: int = 0, delivered: int = 0) -> None:
    for number in range(minutes):
        at = begin_at + number * MINUTE
        TrafficMinute.objects.create(begin_at=at, counted_at=at, request_count=requests, reply_count=0)
        if requests:
            BridgeMinute.objects.create(begin_at=at, bridge="waku", request_count=requests, reply_count=0)
        for channel, outcome in (("APN app", "delivered"), ("APN", "delivered"), ("APN app", "transient")):
            AttemptMinute.objects.create(begin_at=at, channel=channel, outcome=outcome, count=delivered)


def known() -> dict[tuple[datetime, str], int]:
    """Return the flows of messages."""
    rows = TrafficHour.objects.exclude(flow__startswith="free ").exclude(flow=SIZE_OF_DATABASE)
    return {(row.begin_at, row.flow): row.count for row in rows}


def test_the_sum_of_an_hour_is_known_when_its_last_minute_has_settled_with_the_space_of_volumes():
    count_minutes(NOON, 122, requests=2, delivered=3)

    hours.add_up(now=NOON + HOUR + 4 * MINUTE)
    assert known() == {}

    hours.add_up(now=NOON + HOUR + 5 * MINUTE)
    hours.add_up(now=NOON + HOUR + 6 * MINUTE)
    assert known() == {(NOON, "requests waku"): 120, (NOON, "pushes iPhone"): 360, (NOON, "pushes Android"): 0}

    TrafficHour.objects.all().delete()
    hours.add_up(now=NOON + 2 * HOUR + 5 * MINUTE)  # two hours, of which the newest has the space
    everything = {(row.begin_at, row.flow): row.count for row in TrafficHour.objects.all()}
    space = {key: count for key, count in everything.items() if key not in known()}
    assert space.keys() == {(NOON + HOUR, flow) for flow in (SIZE_OF_DATABASE, *(volume.flow for volume in volumes()))}
    assert all(space.values())
    assert not set(hours.read_usual(NOON + HOUR + DAY)) & {flow for _, flow in space}


def test_a_lake_of_another_machine_which_may_hang_is_not_asked(settings, monkeypatch, tmp_path):
    settings.REPORTS_LAKE = str(tmp_path / "share" / "lake")
    (tmp_path / "share" / "lake").mkdir(parents=True)
    assert any("reports" in volume.name for volume in volumes())
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nnas:/share {tmp_path}/share nfs4 rw,hard 0 0\n")
    monkeypatch.setattr("pushserver.history.volumes.MOUNTS", tmp_path / "mounts")
    assert not any("reports" in volume.name for volume in volumes())


def test_the_disk_that_fills_at_the_pace_of_the_last_day_is_red():
    [volume, *_] = volumes()
    lost_per_hour = volume.free_mib // 2
    now = datetime.now(UTC)
    for ago in (0, 1, 2):
        count = volume.free_mib + ago * lost_per_hour
        TrafficHour.objects.create(begin_at=now - ago * HOUR, flow=volume.flow, count=count)
    with connection.cursor() as cursor:
        cursor.execute(PAST)
        past = {flow: Past(*values) for flow, *values in cursor.fetchall()}

    found = judge(DISK, [volume], past)
    assert (found.state, "and is full in 2 h at the pace of the last day" in found.sentence) == (State.RED, True), found


def test_an_hour_without_messages_is_zero_and_one_that_was_not_counted_is_not_known():
    count_minutes(NOON, 60)
    count_minutes(NOON + HOUR, 59)
    count_minutes(NOON + 2 * HOUR, 60, requests=1)

    hours.add_up(now=NOON + 4 * HOUR)

    by_waku = {at: count for (at, flow), count in known().items() if flow == "requests waku"}
    assert by_waku == {NOON: 0, NOON + 2 * HOUR: 60}


def test_usual_is_read_from_the_same_hour_of_other_days_which_are_kept_for_five_weeks():
    for days, count in ((0, 1), (1, 30), (2, 10), (34, 20), (36, 4)):
        TrafficHour.objects.create(begin_at=NOON - days * DAY, flow="requests waku", count=count)
    TrafficHour.objects.create(begin_at=NOON - DAY + HOUR, flow="requests waku", count=5)
    assert hours.read_usual(NOON + 59 * MINUTE) == {"requests waku": [10, 20, 30]}

    for age in (hours.KEPT, hours.KEPT + 2 * HOUR):
        TrafficHour.objects.create(begin_at=NOON - age, flow="pushes iPhone", count=1)
    hours.add_up(now=NOON)
    assert TrafficHour.objects.earliest("begin_at").begin_at == NOON - hours.KEPT
