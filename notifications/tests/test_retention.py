from datetime import timedelta

import pytest
from django.utils import timezone

from notifications import retention
from notifications.models import Attempt, Notification, NotificationRequest
from tests import factories

NOW = timezone.now()
KEEP = timedelta(days=30)
OLD = NOW - KEEP - timedelta(days=1)
pytestmark = pytest.mark.django_db


def test_an_old_request_goes_with_its_notifications_and_attempts() -> None:
    request = factories.make_answered_request(at=OLD)
    factories.make_attempt(factories.make_notification(request=request, state=Notification.State.DELIVERED, at=OLD))

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1
    assert [model.objects.count() for model in (NotificationRequest, Notification, Attempt)] == [0, 0, 0]


def test_a_young_request_stays() -> None:
    factories.make_answered_request(at=NOW - KEEP + timedelta(minutes=1))

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 0


def test_a_request_that_waits_for_its_answer_stays_however_old() -> None:
    factories.make_request(at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 0


@pytest.mark.parametrize("state", [state for state in Notification.State if not state.is_terminal])
def test_a_notification_under_way_keeps_its_whole_request(state: Notification.State) -> None:
    request = factories.make_answered_request(at=OLD)
    factories.make_notification(request=request, state=Notification.State.DELIVERED, at=OLD)
    factories.make_notification(request=request, state=state, at=OLD, position=1)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 0
    assert Notification.objects.count() == 2


@pytest.mark.parametrize("state", [state for state in Notification.State if state.is_terminal])
def test_every_state_that_is_over_is_removed(state: Notification.State) -> None:
    factories.make_notification(request=factories.make_answered_request(at=OLD), state=state, at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1
