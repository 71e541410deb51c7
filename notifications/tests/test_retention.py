"""Tests of retention: whole days are dropped, without rows under way and without rows that others refer to."""

from datetime import timedelta

import pytest
from django.utils import timezone

from notifications import retention
from notifications.models import Attempt, Notification, NotificationRequest
from tests.rig import rows
from tests.rig.statements import statements

NOW = timezone.now()
DAY = timedelta(days=1)
KEEP = timedelta(days=30)
OLD = NOW - KEEP - DAY
pytestmark = pytest.mark.django_db
OPEN = [state for state in Notification.State if not state.is_terminal]
OVER = [state for state in Notification.State if state.is_terminal]


@pytest.fixture(params=["days", "default"], autouse=True)
def _partitions(request: pytest.FixtureRequest) -> None:
    """Create the partitions of the old days, or leave the rows to the default partition."""
    if request.param == "days":
        for table in retention.BY_DAY:
            table.make_from(OLD - 3 * DAY, to=NOW)


def left() -> list[int]:
    return [model.objects.count() for model in (NotificationRequest, Notification)]


def make_ended(state: str = "delivered", *, at=OLD, ended_at=None) -> Notification:
    request = rows.make_answered_request(at=at)
    return rows.make_notification(request=request, state=state, at=at, finished_at=ended_at or at)


def purge() -> None:
    for _ in retention.purge(now=NOW, keep=KEEP):
        pass


@pytest.mark.parametrize("state", OVER)
def test_a_day_is_dropped_with_everything_that_ended_on_it(state: Notification.State) -> None:
    make_ended(state)
    purge()
    assert left() == [0, 0]


@pytest.mark.parametrize("state", OPEN)
def test_an_old_notification_under_way_stays_and_so_does_its_request(state: Notification.State) -> None:
    request = rows.make_answered_request(at=OLD)
    rows.make_notification(request=request, state=state, at=OLD)
    purge()
    assert left() == [1, 1]


def test_an_old_request_that_waits_for_its_answer_stays() -> None:
    rows.make_request(at=OLD)
    purge()
    assert left() == [1, 0]


def test_a_request_is_kept_for_as_long_as_a_notification_of_it_that_ended_days_later() -> None:
    notification = make_ended(at=OLD, ended_at=OLD + 3 * DAY)
    purge()
    assert left() == [1, 1]
    notification.delete()
    purge()
    assert left() == [0, 0]


def test_attempts_are_dropped_with_their_day_and_new_days_are_made() -> None:
    attempts = [rows.make_attempt(started_at=at) for at in (OLD, NOW - KEEP, NOW)]
    purge()
    assert list(Attempt.objects.order_by("pk")) == attempts[1:]
    for table in retention.BY_DAY:
        assert {NOW.date(), (NOW + 7 * DAY).date()} <= table.days()
        assert min(table.days()) >= (NOW - KEEP).date() or table is retention.REQUESTS


def test_as_many_statements_remove_a_hundred_requests_as_one() -> None:
    def sent_for(number: int) -> list[str]:
        for _ in range(number):
            rows.make_attempt(make_ended())
        with statements() as sent:
            purge()
        assert left() == [0, 0]
        return sent

    for table in retention.BY_DAY:
        table.make_from(OLD, to=NOW)
        table.make_ahead(now=NOW)
    sent_for(1)
    assert len(sent_for(100)) == len(sent_for(1))


def test_rows_under_way_are_searched_only_when_requests_would_be_dropped() -> None:
    """An old snapshot makes that search expensive."""
    make_ended(at=NOW - KEEP)
    purge()
    with statements() as sent:
        purge()
    assert retention._OLDEST not in sent
    rows.make_answered_request(at=OLD - 2 * DAY)
    with statements() as sent:
        purge()
    assert retention._OLDEST in sent
