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


def test_an_incident_is_kept_with_its_begin_and_end() -> None:
    assert [see(GREEN, 0), see(RED, 5), see(RED, 20), see(GREEN, 65)] == [None, at(5), at(5), None]
    assert rows() == [("act now", at(5), at(65))]


def test_another_colour_is_the_same_incident() -> None:
    assert [see(YELLOW, 0), see(RED, 30), see(YELLOW, 60)] == [at(0)] * 3
    assert rows() == [("look at it", at(0), None)]
    incident = Incident.objects.get()
    assert (incident.red_from, incident.red_until, incident.worst, incident.sentence) == (
        *(at(30), at(60), RED),
        "is act now",
    )


def test_an_incident_keeps_its_owner_in_every_colour() -> None:
    see(YELLOW, 0)
    Incident.objects.update(acknowledged_by="ann")
    [seen] = remember([Indicator(BROKER, RED, "is red")], recall(now=at(9)), now=at(9))
    assert seen.owner == "ann"


def test_a_moment_of_green_ends_nothing_and_a_minute_does() -> None:
    assert [see(RED, 0), see(GREEN, 10), see(RED, 40)] == [at(0), None, at(0)]
    assert rows() == [("act now", at(0), None)]

    assert [see(GREEN, 50), see(RED, 111)] == [None, at(111)]
    assert rows() == [("act now", at(0), at(50)), ("act now", at(111), None)]


def test_while_nothing_is_known_an_incident_neither_ends_nor_begins() -> None:
    assert [see(GREY, 0), see(RED, 5), see(GREY, 10), see(RED, 300)] == [None, at(5), None, at(5)]
    assert rows() == [("act now", at(5), None)]


def test_two_processes_that_see_the_same_change_note_it_once() -> None:
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


def test_an_indicator_that_is_gone_has_no_open_incident() -> None:
    see(RED, 0)
    remember([], recall(now=at(9)), now=at(9))
    assert rows() == [("act now", at(0), at(9))]


def test_incidents_are_kept_for_thirty_days_and_longer_while_they_go_on() -> None:
    for indicator, ended_at in (("old", at(0)), ("new", at(60)), ("open", None)):
        make(Incident, indicator=indicator, state="act now", at=at(-9), ended_at=ended_at)

    assert sum(retention.purge_incidents(now=at(30) + timedelta(days=30))) == 1
    assert {row.indicator for row in Incident.objects.all()} == {"new", "open"}
