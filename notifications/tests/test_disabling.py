"""Tests of routes that fail for days, and of undoing disablings by a wrong set-up."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from notifications.messages import AppKey, Outcome, Result
from notifications.models import Channel
from notifications.queues import breakers
from pushserver.console.notifications import channels
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import APP, NOW, answered, claimed, fresh, make_due, recorded
from tests.rig.rows import make_registration, make_route
from tests.rig.statements import other_session

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
APPLE, GOOGLE = AppKey(1, APP), AppKey(2, "")
Kind = RegistrationEvent.Kind


def fails(route, *, after, others_arrive=True):
    """Record one more failure of a route. In between the app delivered something else, or nothing."""
    now = NOW + after
    if others_arrive:
        Channel.objects.update_or_create(**GOOGLE._asdict(), defaults={"last_success_at": now - timedelta(minutes=1)})
    answered(Result(Outcome.TRANSIENT), make_due(route=route, expires_at=now + timedelta(days=1)), now=now)


def failing_for(route, *, at):
    return NOW + at - fresh(route).failing_since


@pytest.mark.requirement("XB16", "X16")
def test_a_route_that_fails_while_others_work_is_disabled_after_three_days():
    registration = make_registration()
    for hour in range(0, 72, 4):
        fails(registration.route, after=hour * HOUR)
    assert fresh(registration.route).state == Route.State.ACTIVE
    fails(registration.route, after=72 * HOUR)
    route = fresh(registration.route)
    assert (route.state, route.disabled_reason, route.disabled_at) == ("disabled", "failing", NOW + 72 * HOUR)
    event = RegistrationEvent.objects.get()
    assert (event.kind, event.pseudonym) == (Kind.EXPIRED, registration.pseudonym)


@pytest.mark.requirement("XB16", "X16")
def test_the_clock_stands_still_while_nothing_of_the_channel_is_delivered():
    route = make_registration().route
    for hour in range(0, 49, 4):
        fails(route, after=hour * HOUR)
    for hour in range(52, 148, 4):
        fails(route, after=hour * HOUR, others_arrive=False)
    # At most the time up to the first failure in the outage counts.
    assert failing_for(route, at=144 * HOUR) <= 52 * HOUR
    assert fresh(route).state == Route.State.ACTIVE
    for hour in range(148, 148 + 28, 4):
        fails(route, after=hour * HOUR)
    assert fresh(route).state == Route.State.DISABLED


def test_time_without_attempts_counts_for_six_hours_only():
    route = make_registration().route
    fails(route, after=0 * HOUR)
    fails(route, after=100 * HOUR)
    assert failing_for(route, at=100 * HOUR) == 6 * HOUR


def test_a_success_stops_the_clock():
    route = make_registration().route
    fails(route, after=0 * HOUR)
    answered(Result(Outcome.DELIVERED), make_due(route=route), now=NOW + HOUR)
    assert (fresh(route).failing_since, fresh(route).last_success_at) == (None, NOW + HOUR)
    fails(route, after=2 * HOUR)
    assert fresh(route).failing_since == NOW + 2 * HOUR


@pytest.mark.parametrize("outcome", [Outcome.CONFIG, Outcome.AMBIGUOUS, Outcome.PAYLOAD])
def test_failures_that_are_not_of_the_address_do_not_start_the_clock(outcome):
    route = make_registration().route
    answered(Result(outcome), make_due(route=route))
    assert fresh(route).failing_since is None


# Undoing --------------------------------------------------------------------------------------------------------------


def make_disabled(*, at=NOW, reason="BadDeviceToken", app_topic=APP, token_type=1):
    route = make_route(token_type=token_type, app_topic=app_topic)
    Route.objects.filter(pk=route.pk).update(state="disabled", disabled_reason=reason, disabled_at=at)
    return make_registration(route=fresh(route))


def test_undoing_brings_back_the_routes_that_died_since_then():
    registration = make_disabled()
    assert channels.undo_disabling(APPLE, NOW, now=NOW + HOUR) == 1
    route = fresh(registration.route)
    assert (route.state, route.disabled_reason, route.disabled_at) == ("active", "", None)
    event = RegistrationEvent.objects.get()
    assert (event.kind, event.pseudonym, event.at) == (Kind.REVIVED, registration.pseudonym, NOW + HOUR)


def test_undoing_changes_no_route_of_another_time_reason_or_app():
    make_disabled(at=NOW - timedelta(seconds=1))
    make_disabled(reason=breakers.FAILING)
    make_disabled(reason=breakers.BY_OPERATOR)
    make_disabled(app_topic="other")
    make_disabled(token_type=2, app_topic="")
    assert channels.disabled_since(APPLE, NOW).count() == channels.undo_disabling(APPLE, NOW, now=NOW) == 0
    assert not RegistrationEvent.objects.exists()


def test_undoing_does_not_touch_a_token_registered_meanwhile():
    registration = make_disabled()
    Route.objects.update(state="active", disabled_at=None, generation=2, last_success_at=NOW)
    assert channels.undo_disabling(APPLE, NOW, now=NOW) == 0
    assert fresh(registration.route).generation == 2


@pytest.mark.django_db(transaction=True)
def test_undoing_brings_back_all_or_none():
    last = [make_disabled() for _ in range(3)][-1].route
    with other_session() as other, connection.cursor() as own:
        other.execute("SELECT FROM registrations_route WHERE id = %s FOR UPDATE", [last.pk])
        own.execute("SET lock_timeout = '50ms'")
        with pytest.raises(OperationalError):
            channels.undo_disabling(APPLE, NOW, now=NOW)
        own.execute("RESET lock_timeout")
    assert not Route.objects.filter(state="active").exists()
    assert channels.undo_disabling(APPLE, NOW, now=NOW) == 3


# Proven addresses -----------------------------------------------------------------------------------------------------


def register_again(route, *, token=b"another", app_topic=""):
    row = fresh(route)
    row.set_address("gorush", row.token_type, app_topic or row.app_topic, token)
    row.save()


def test_a_delivery_to_the_earlier_token_does_not_prove_the_new_one():
    route = make_registration().route
    answered(Result(Outcome.DELIVERED), make_due(route=route))
    register_again(route)
    assert not fresh(route).is_proven
    answered(Result(Outcome.DELIVERED), make_due(route=route))
    assert fresh(route).is_proven


def test_a_late_delivery_to_the_earlier_token_takes_no_proof_from_the_present_one():
    route = make_registration().route
    [late] = claimed(make_due(route=route))
    register_again(route)
    answered(Result(Outcome.DELIVERED), make_due(route=route))
    recorded([(late, Result(Outcome.DELIVERED))], now=NOW + 2 * HOUR)
    assert fresh(route).is_proven


def test_a_token_is_not_proven_in_another_app():
    route = make_registration(route=make_route(token_type=1, app_topic=APP, device_token="abc")).route
    [late] = claimed(make_due(route=route))
    answered(Result(Outcome.DELIVERED), make_due(route=route))
    assert fresh(route).is_proven
    register_again(route, token=b"abc", app_topic="org.victim")
    recorded([(late, Result(Outcome.DELIVERED))])
    assert not fresh(route).is_proven
