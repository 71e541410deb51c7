from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from notifications import retention
from notifications.models import Attempt, Notification, NotificationRequest
from tests import factories
from tests.statements import statements

NOW = timezone.now()
KEEP = timedelta(days=30)
OLD = NOW - KEEP - timedelta(days=1)
pytestmark = pytest.mark.django_db


def test_an_old_request_goes_with_its_notifications() -> None:
    request = factories.make_answered_request(at=OLD)
    factories.make_notification(request=request, state=Notification.State.DELIVERED, at=OLD)

    assert sum(retention.purge(now=NOW, keep=KEEP)) == 1
    assert [model.objects.count() for model in (NotificationRequest, Notification)] == [0, 0]


def test_attempts_go_with_their_day_and_new_ones_have_a_partition() -> None:
    retention.ATTEMPTS.make_from(OLD, to=NOW - KEEP)
    attempts = [factories.make_attempt(started_at=at) for at in (OLD, NOW - KEEP, NOW)]
    far = NOW + timedelta(days=5)

    list(retention.purge_attempts(now=far, keep=KEEP + timedelta(days=5)))

    assert list(Attempt.objects.order_by("pk")) == attempts[1:]
    assert {NOW.date(), (far + timedelta(days=7)).date()} <= retention.ATTEMPTS.days()
    assert min(retention.ATTEMPTS.days()) == (NOW - KEEP).date()


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


def test_as_many_statements_remove_a_hundred_requests_as_one() -> None:
    for _ in range(100):
        factories.make_attempt(
            factories.make_notification(
                request=factories.make_answered_request(at=OLD), state=Notification.State.DELIVERED, at=OLD
            )
        )
    with statements() as sent:
        assert sum(retention.purge(now=NOW, keep=KEEP)) == 100
    assert len(sent) == 1


@pytest.mark.django_db(transaction=True)
def test_what_somebody_works_on_is_left_for_the_next_time_and_not_waited_for() -> None:
    held, free = (factories.make_answered_request(at=OLD) for _ in range(2))
    with closing(psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None})) as other:
        other.execute("SELECT FROM notifications_notificationrequest WHERE id = %s FOR UPDATE", [held.pk])

        assert sum(retention.purge(now=NOW, keep=KEEP)) == 1

    assert [request.pk for request in NotificationRequest.objects.all()] == [held.pk]
    assert free.pk != held.pk


def test_what_is_under_way_is_looked_up_by_request_however_many_notifications_there_are() -> None:
    """PostgreSQL chooses between a look-up for each request and reading all notifications by what it guesses."""
    with connection.cursor() as cursor:
        facts = {"before": NOW, "under_way": [str(Notification.State.PENDING)]}
        cursor.execute(f"EXPLAIN {retention._PURGE}", facts)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "SubPlan" in plan
    assert "Anti Join" not in plan
