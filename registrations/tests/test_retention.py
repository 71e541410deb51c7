from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from registrations import retention
from registrations.models import RegistrationEvent
from tests import factories

NOW = timezone.now()
KEEP = timedelta(days=400)
Kind = RegistrationEvent.Kind


@pytest.mark.django_db
def test_old_history_is_removed_and_young_history_stays() -> None:
    factories.make_event(kind=Kind.UNREGISTERED, at=NOW - KEEP - timedelta(seconds=1))
    young = factories.make_event(at=NOW - KEEP + timedelta(seconds=1))

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1
    assert list(RegistrationEvent.objects.all()) == [young]


@pytest.mark.django_db
def test_the_last_event_of_an_installation_that_can_be_pushed_to_stays() -> None:
    pseudonym = uuid4()
    factories.make_event(pseudonym=pseudonym, at=NOW - KEEP * 3)
    last = factories.make_event(pseudonym=pseudonym, kind=Kind.REFRESHED, at=NOW - KEEP * 2)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1
    assert list(RegistrationEvent.objects.all()) == [last]
