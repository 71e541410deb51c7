"""Operator actions on routes and notifications."""

from datetime import timedelta

import pytest
from django.utils import timezone

from notifications.console import operator_actions
from notifications.models import Notification
from notifications.queues import halts
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import NOW, due_ids, fresh, make_due
from tests.rig.rows import make_notification, make_registration, make_route

pytestmark = pytest.mark.django_db
State = Notification.State


def disabled_route(reason):
    return make_registration(
        route=make_route(state=Route.State.DISABLED, disabled_reason=reason, disabled_at=NOW)
    ).route


def test_a_disabled_route_says_why_and_what_waited_for_it_is_withdrawn():
    notification = make_due()

    assert operator_actions.disable_routes([notification.route_id], now=NOW) == 1

    route = fresh(notification.route)
    assert (route.state, route.disabled_reason, route.disabled_at) == ("disabled", "operator", NOW)
    assert fresh(notification).state == State.WITHDRAWN
    assert fresh(notification).message is None


def test_a_notification_in_flight_is_left_to_its_worker():
    notification = make_due(state=State.IN_FLIGHT)
    operator_actions.disable_routes([notification.route_id], now=NOW)
    assert fresh(notification).state == State.IN_FLIGHT


@pytest.mark.parametrize("change", [operator_actions.disable_routes, operator_actions.enable_routes])
def test_of_two_operators_the_later_one_changes_nothing(change):
    route = make_route() if change is operator_actions.disable_routes else disabled_route("operator")
    assert [change([route.pk], now=NOW), change([route.pk], now=NOW + timedelta(hours=1))] == [1, 0]
    assert fresh(route).disabled_at in {NOW, None}


@pytest.mark.parametrize(
    ("reason", "events"), [("operator", []), ("device_gone", ["revived"]), ("failing", ["revived"])]
)
def test_reviving_a_dead_token_stores_an_event_for_reports(reason, events):
    route = disabled_route(reason)
    assert operator_actions.enable_routes([route.pk], now=NOW) == 1
    assert (fresh(route).state, fresh(route).disabled_reason) == ("active", "")
    assert list(RegistrationEvent.objects.values_list("kind", flat=True)) == events


def test_a_retry_can_be_made_due_at_once():
    now = timezone.now()
    later = make_due(state=State.RETRYING, next_attempt_at=now + timedelta(hours=1))
    over = make_notification(state=State.DELIVERED, next_attempt_at=None)

    assert [operator_actions.try_now([later.pk, over.pk], now=now) for _ in "12"] == [1, 0]

    assert due_ids(now=now) == [later.pk]


def test_a_dropped_notification_is_never_sent():
    waiting, held = make_due(state=State.RETRYING), make_due(state=State.IN_FLIGHT)

    assert [operator_actions.drop([waiting.pk, held.pk], now=NOW) for _ in "12"] == [1, 0]

    assert (fresh(waiting).state, fresh(held).state) == (State.WITHDRAWN, State.IN_FLIGHT)
    assert fresh(waiting).chat_id is None


def test_draining_says_since_when_and_by_whom():
    assert halts.drain() is None
    halts.start_draining(by="ann", why="gorush moves", now=NOW)
    drain = halts.drain()
    assert (drain.by, drain.reason, drain.since) == ("ann", "gorush moves", NOW)
