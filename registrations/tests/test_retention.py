from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from registrations import retention
from registrations.models import Registration, RegistrationEvent
from registrations.rules import Acceptance
from registrations.tests.test_registering import register, submission, unregistration
from tests.rig import rows

NOW = timezone.now().replace(hour=12)  # an hour later it is the same week
KEEP = timedelta(days=400)
Kind = RegistrationEvent.Kind


pytestmark = pytest.mark.django_db
OLD = NOW - KEEP - timedelta(days=7)


@pytest.fixture(params=["a partition each", "in the default partition"], autouse=True)
def _weeks(request: pytest.FixtureRequest) -> None:
    if request.param == "a partition each":
        retention.EVENTS.make_from(OLD - KEEP, to=NOW)


def purge() -> list[RegistrationEvent]:
    list(retention.purge(now=NOW, keep=KEEP))
    return list(RegistrationEvent.objects.order_by("at"))


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([(Kind.REGISTERED, OLD - KEEP), (Kind.REFRESHED, OLD)], 1),  # it can be pushed to
        ([(Kind.REFRESHED, OLD), (Kind.UNREGISTERED, NOW)], 1),
        ([(Kind.REGISTERED, OLD - KEEP), (Kind.EXPIRED, OLD)], 0),
    ],
)
def test_of_an_installation_its_last_event_stays_unless_it_has_ended(events: list[Any], left: int) -> None:
    pseudonym = uuid4()
    rows_of_events = [rows.make_event(pseudonym=pseudonym, kind=kind, at=at) for kind, at in events]
    assert [purge() for _ in "12"] == [rows_of_events[-1:] if left else []] * 2


def test_an_installation_that_registered_and_ended_in_one_batch_leaves_nothing() -> None:
    """Both events have the time of the batch. The one that was decided last counts."""
    registered, ended, returned = submission(version=1), unregistration(version=2), submission(version=3)
    assert set(register(registered, ended, now=OLD)) == {Acceptance.REGISTER, Acceptance.UNREGISTER}
    assert purge() == []
    register(returned, unregistration(version=4), submission(version=5), now=OLD + timedelta(hours=1))
    [last] = purge()
    assert last.kind == Kind.REGISTERED
    assert last.pseudonym == Registration.objects.get().pseudonym


def test_partitions_of_past_weeks_are_dropped_and_those_of_coming_weeks_are_made() -> None:
    purge()
    weeks = retention.EVENTS.days()
    assert min(weeks) + timedelta(days=7) > (NOW - KEEP).date()
    assert max(weeks) > NOW.date(), "the next week exists from the first day of this one"
