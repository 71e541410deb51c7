from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from registrations.models import Registration, RegistrationEvent
from registrations.rules import Acceptance
from registrations.tests.test_intake import register, submission, unregistration
from registrations.upkeep import retention
from tests.rig import rows

NOW = timezone.now()
KEEP = timedelta(days=400)
Kind = RegistrationEvent.Kind


pytestmark = pytest.mark.django_db
OLD = NOW - KEEP - timedelta(days=7)


@pytest.fixture(params=["a partition each", "in the default partition"], autouse=True)
def _weeks(request: pytest.FixtureRequest) -> None:
    if request.param == "a partition each":
        retention.EVENTS.make_from(NOW - 4 * KEEP, to=NOW)


def purge() -> list[RegistrationEvent]:
    list(retention.purge(now=NOW, keep=KEEP))
    return list(RegistrationEvent.objects.order_by("at"))


def test_the_last_event_of_an_installation_that_can_be_pushed_to_stays() -> None:
    pseudonym = uuid4()
    rows.make_event(pseudonym=pseudonym, at=OLD - KEEP)
    last = rows.make_event(pseudonym=pseudonym, kind=Kind.REFRESHED, at=OLD)
    assert purge() == [last]
    assert purge() == [last]


def test_an_old_event_is_removed_when_there_is_a_later_one() -> None:
    old = rows.make_event(kind=Kind.REFRESHED, at=OLD)
    assert purge() == [old]
    later = rows.make_event(pseudonym=old.pseudonym, kind=Kind.UNREGISTERED, at=NOW)
    assert purge() == [later]


def test_all_events_of_an_ended_installation_are_removed() -> None:
    pseudonym = uuid4()
    rows.make_event(pseudonym=pseudonym, at=OLD - KEEP)
    rows.make_event(pseudonym=pseudonym, kind=Kind.EXPIRED, at=OLD)
    assert purge() == []


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
    first, *_, last = sorted(retention.EVENTS.days())
    assert first + timedelta(days=7) > (NOW - KEEP).date()
    assert last + timedelta(days=7) > NOW.date() + timedelta(days=7)
