"""Incidents: one row for each, also when several processes take snapshots and an indicator changes often."""

from datetime import UTC, datetime, timedelta

import pytest

from kit.health.indicators import Indicator, State
from pushserver.history import retention
from pushserver.indicators.incidents import Memory, recall, remember
from pushserver.indicators.kinds.server import BROKER
from pushserver.models import Incident
from tests.rig.rows import make

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RED, YELLOW, GREEN, GREY = State.RED, State.YELLOW, State.GREEN, State.GREY


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def see(state: State, seconds: float, memory: Memory | None = None) -> datetime | None:
    """Remember one indicator in this state, and return since when it is not green."""
    indicator = Indicator(BROKER, state, f"is {state}")
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
    [seen] = remember([Indicator(BROKER, RED, "is red")], recall(now=at(30)), now=at(30))
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

    assert sum(retention.purge_incidents(now=at(30) + timedelta(days=30))) == 1
    assert {row.indicator for row in Incident.objects.all()} == {"new", "open"}
