"""What is kept of the past: hours of traffic, and incidents."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from pushserver.console.health import incidents, traffic
from pushserver.console.health.asking import PAST, volumes
from pushserver.console.health.incidents import Memory, recall, remember
from pushserver.console.health.indicators import DATABASE, SIZE_OF_DATABASE, Past, disk
from pushserver.console.health.verdicts import Facts, State, Verdict
from pushserver.console.models import Count, Incident, TrafficMinute
from tests.rig.rows import make

pytestmark = pytest.mark.django_db
HOURS = Count.objects.filter(figure="hour")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def count_minutes(begin_at: datetime, minutes: int, *, requests: int = 0, delivered: int = 0) -> None:
    for number in range(minutes):
        at = begin_at + number * MINUTE
        TrafficMinute.objects.create(begin_at=at, counted_at=at, request_count=requests, reply_count=0)
        if requests:
            Count.objects.create(figure="requests", begin_at=at, subject="waku", count=requests)
        for channel, outcome in (("APN app", "delivered"), ("APN", "delivered"), ("APN app", "transient")):
            Count.objects.create(figure="attempts", begin_at=at, subject=channel, outcome=outcome, count=delivered)


def known() -> dict[tuple[datetime, str], int]:
    """Return the flows of messages."""
    rows = HOURS.exclude(subject__startswith="free ").exclude(subject=SIZE_OF_DATABASE)
    return {(row.begin_at, row.subject): row.count for row in rows}


def test_the_sum_of_an_hour_is_known_when_its_last_minute_has_settled_with_the_space_of_volumes():
    count_minutes(NOON, 122, requests=2, delivered=3)

    traffic.add_up(now=NOON + HOUR + 4 * MINUTE)
    assert known() == {}

    traffic.add_up(now=NOON + HOUR + 5 * MINUTE)
    traffic.add_up(now=NOON + HOUR + 6 * MINUTE)
    assert known() == {(NOON, "requests waku"): 120, (NOON, "pushes iPhone"): 360, (NOON, "pushes Android"): 0}

    HOURS.all().delete()
    traffic.add_up(now=NOON + 2 * HOUR + 5 * MINUTE)  # two hours, of which the newest has the space
    everything = {(row.begin_at, row.subject): row.count for row in HOURS.all()}
    space = {key: count for key, count in everything.items() if key not in known()}
    assert space.keys() == {(NOON + HOUR, flow) for flow in (SIZE_OF_DATABASE, *(volume.flow for volume in volumes()))}
    assert all(space.values())
    assert not set(traffic.read_usual(NOON + HOUR + DAY)) & {flow for _, flow in space}


def test_a_lake_of_another_machine_which_may_hang_is_not_asked(settings, monkeypatch, tmp_path):
    settings.REPORTS_LAKE = str(tmp_path / "share" / "lake")
    (tmp_path / "share" / "lake").mkdir(parents=True)
    assert any("reports" in volume.name for volume in volumes())
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nnas:/share {tmp_path}/share nfs4 rw,hard 0 0\n")
    monkeypatch.setattr("pushserver.console.health.asking.MOUNTS", tmp_path / "mounts")
    assert not any("reports" in volume.name for volume in volumes())


def test_the_disk_that_fills_at_the_pace_of_the_last_day_is_red():
    [volume, *_] = volumes()
    lost_per_hour = volume.free_mib // 2
    now = datetime.now(UTC)
    for ago in (0, 1, 2):
        count = volume.free_mib + ago * lost_per_hour
        Count.objects.create(figure="hour", begin_at=now - ago * HOUR, subject=volume.flow, count=count)
    with connection.cursor() as cursor:
        cursor.execute(PAST)
        past = {flow: Past(*values) for flow, *values in cursor.fetchall()}

    found = disk(Facts(volumes=[volume], past=past))
    assert (found.state, "and is full in 2 h at the pace of the last day" in found.sentence) == (State.RED, True), found


def test_an_hour_without_messages_is_zero_and_one_that_was_not_counted_is_not_known():
    count_minutes(NOON, 60)
    count_minutes(NOON + HOUR, 59)
    count_minutes(NOON + 2 * HOUR, 60, requests=1)

    traffic.add_up(now=NOON + 4 * HOUR)

    by_waku = {at: count for (at, flow), count in known().items() if flow == "requests waku"}
    assert by_waku == {NOON: 0, NOON + 2 * HOUR: 60}


def test_usual_is_read_from_the_same_hour_of_other_days_which_are_kept_for_five_weeks():
    for days, count in ((0, 1), (1, 30), (2, 10), (34, 20), (36, 4)):
        Count.objects.create(figure="hour", begin_at=NOON - days * DAY, subject="requests waku", count=count)
    Count.objects.create(figure="hour", begin_at=NOON - DAY + HOUR, subject="requests waku", count=5)
    assert traffic.read_usual(NOON + 59 * MINUTE) == {"requests waku": [10, 20, 30]}

    for age in (traffic.HOURS_KEPT, traffic.HOURS_KEPT + 2 * HOUR):
        Count.objects.create(figure="hour", begin_at=NOON - age, subject="pushes iPhone", count=1)
    traffic.add_up(now=NOON)
    assert HOURS.earliest("begin_at").begin_at == NOON - traffic.HOURS_KEPT


# Incidents: one row for each, also when several processes take snapshots and an indicator changes often ---------------
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RED, YELLOW, GREEN, GREY = State.RED, State.YELLOW, State.GREEN, State.GREY


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def see(state: State, seconds: float, memory: Memory | None = None) -> datetime | None:
    """Remember one indicator in this state, and return since when it is not green."""
    indicator = Verdict(state, f"is {state}", kind=DATABASE)
    known = memory or recall(now=at(seconds))
    [seen] = remember([indicator], known, now=at(seconds))
    return seen.since


def rows() -> list[tuple[str, datetime, datetime | None]]:
    return list(Incident.objects.order_by("pk").values_list("state", "began_at", "ended_at"))


@pytest.mark.parametrize(
    ("seen", "since", "kept"),
    [
        ([(GREEN, 0), (RED, 5), (RED, 20), (GREEN, 65)], [None, 5, 5, None], [("act now", 5, 65)]),
        # A moment of green ends nothing, and a minute does.
        ([(RED, 0), (GREEN, 10), (RED, 40)], [0, None, 0], [("act now", 0, None)]),
        ([(RED, 0), (GREEN, 50), (RED, 111)], [0, None, 111], [("act now", 0, 50), ("act now", 111, None)]),
        # While nothing is known an incident neither ends nor begins.
        ([(GREY, 0), (RED, 5), (GREY, 10), (RED, 300)], [None, 5, None, 5], [("act now", 5, None)]),
        ([(YELLOW, 0), (RED, 30), (YELLOW, 60)], [0, 0, 0], [("look at it", 0, None)]),  # another colour
    ],
)
def test_an_incident_is_kept_with_its_begin_and_end(seen, since, kept):
    def seconds(moment: datetime | None) -> float | None:
        return moment and (moment - NOW).total_seconds()

    assert [seconds(see(state, moment)) for state, moment in seen] == since
    assert [(state, seconds(began), seconds(ended)) for state, began, ended in rows()] == kept


def test_an_incident_keeps_its_owner_and_the_time_in_red_in_every_colour():
    see(YELLOW, 0)
    Incident.objects.update(acknowledged_by="ann")
    [seen] = remember([Verdict(RED, "is red", kind=DATABASE)], recall(now=at(30)), now=at(30))
    assert seen.owner == "ann"
    see(YELLOW, 60)
    incident = Incident.objects.get()
    assert (incident.red_from, incident.red_until, incident.worst) == (at(30), at(60), RED)
    assert incident.sentence == "is red"


def test_two_processes_that_see_the_same_change_note_it_once():
    first = recall(now=at(0))
    assert [see(RED, 0, first), see(RED, 1, first)] == [at(0), at(1)]
    before = recall(now=at(2))
    see(YELLOW, 2, before)
    see(YELLOW, 3, before)
    again = recall(now=at(4))
    see(GREEN, 4, again)
    see(GREEN, 5, again)

    assert rows() == [("look at it", at(0), at(4))]
    assert Incident.objects.get().red_until == at(2)


def test_an_indicator_that_is_gone_has_no_open_incident():
    see(RED, 0)
    remember([], recall(now=at(9)), now=at(9))
    assert rows() == [("act now", at(0), at(9))]


def test_incidents_are_kept_for_thirty_days_and_longer_while_they_go_on():
    for indicator, ended_at in (("old", at(0)), ("new", at(60)), ("open", None)):
        make(Incident, indicator=indicator, state="act now", at=at(-9), ended_at=ended_at)

    assert sum(incidents.purge(now=at(30) + timedelta(days=30))) == 1
    assert {row.indicator for row in Incident.objects.all()} == {"new", "open"}
