"""Tests of tokens refused as dead: believed one by one, and not believed in large numbers."""

import secrets
from datetime import timedelta

import pytest

from notifications.messages import Outcome, Result
from notifications.models import Attempt, Channel, Halt, Notification
from notifications.queues import halts
from notifications.queues.tests.test_breakers import APPLE, DELIVERED, make_due_to_app, sends
from registrations.models import RegistrationEvent, Route
from tests.delivering import APP, LONG_AGO, NOW, answered, claimed, fresh, make_due, prove, recorded
from tests.factories import make_registration, make_request, make_route

DEAD = Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True)
HOUR = timedelta(hours=1)
State = Notification.State

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _limits():
    prove(APPLE)


def make_phone(**fields):
    return make_registration(route=make_route(token_type=1, app_topic=APP, last_success_at=LONG_AGO, **fields)).route


def disabled_count():
    return Route.objects.filter(state=Route.State.DISABLED).count()


def is_distrusted():
    return Channel.objects.get(**APPLE._asdict()).deaths_distrusted_since is not None


def test_many_dead_tokens_at_once_are_not_believed_and_nothing_is_halted():
    sends(DELIVERED, 79)
    sends(DEAD, 19)
    assert (is_distrusted(), disabled_count()) == (False, 19)
    sends(DEAD, 10)
    assert (is_distrusted(), disabled_count()) == (True, 19)
    assert RegistrationEvent.objects.filter(kind=RegistrationEvent.Kind.TOKEN_DIED).count() == 19
    assert not Halt.objects.exists()
    assert len(claimed(make_due_to_app())) == 1


def test_a_batch_in_which_all_die_disables_nothing_at_all():
    sends(DEAD, 20)
    assert (is_distrusted(), disabled_count()) == (True, 0)


def test_a_push_with_a_distrusted_verdict_is_kept_and_retried():
    doubtful = [make_due_to_app() for _ in range(20)]
    answered(DEAD, *doubtful)
    assert {fresh(n).state for n in doubtful} == {State.RETRYING}
    assert set(Attempt.objects.values_list("outcome", "is_guarded")) == {("dead", True)}


def test_while_deaths_are_distrusted_none_is_believed():
    sends(DEAD, 20)
    sends(DEAD, 1, now=NOW + 3 * HOUR)
    assert disabled_count() == 0


def test_a_usual_share_of_dead_tokens_is_disabled_one_by_one():
    sends(DELIVERED, 100)
    sends(DEAD, 25)
    assert (is_distrusted(), disabled_count()) == (False, 25)


def test_verdicts_that_no_set_up_explains_are_always_believed():
    sends(Result(Outcome.DEAD, "Unregistered"), 30)
    assert (is_distrusted(), disabled_count()) == (False, 30)
    sends(DEAD, 20)
    sends(Result(Outcome.DEAD, "Unregistered"), 1)
    assert disabled_count() == 31


def test_deaths_of_more_than_an_hour_ago_do_not_count():
    sends(DEAD, 19, now=NOW - HOUR - timedelta(seconds=1))
    sends(DEAD, 19)
    assert not is_distrusted()


def test_an_app_whose_every_token_is_refused_for_hours_and_then_works_loses_nobody():
    """It takes no operator: refused pushes are sent again, and the ones that arrive show that the set-up is right."""
    pushes = [make_due_to_app() for _ in range(25)]
    for minutes in range(0, 180, 20):  # they are sent again after ten minutes at most
        answered(DEAD, *pushes, now=NOW + timedelta(minutes=minutes))
        assert (is_distrusted(), disabled_count()) == (True, 0)
    assert Attempt.objects.count() == 25 * 9
    later = NOW + timedelta(minutes=180)
    answered(DELIVERED, *pushes, now=later)
    assert {fresh(n).state for n in pushes} == {State.DELIVERED}
    assert (is_distrusted(), disabled_count()) == (False, 0)
    answered(DEAD, make_due_to_app(), now=later)
    assert disabled_count() == 1


def test_deaths_are_believed_again_when_the_share_falls():
    pushes = [make_due_to_app() for _ in range(25)]
    answered(DEAD, *pushes)
    answered(DELIVERED, *pushes[:5], now=NOW + HOUR / 2)
    assert is_distrusted()
    answered(DELIVERED, *pushes[5:], now=NOW + HOUR / 2)
    assert not is_distrusted()


def test_results_while_deaths_are_distrusted_disable_nothing():
    late = [(held, DEAD) for held in claimed(make_due_to_app())]
    sends(DEAD, 20)
    recorded(late)
    assert disabled_count() == 0


# Made-up registrations ------------------------------------------------------------------------------------------------


def test_made_up_tokens_do_not_make_the_deaths_of_an_app_distrusted():
    """Made-up tokens cost nothing: twenty of them used to stop all pushes."""
    sends(DEAD, 40, is_proven=False)
    assert (is_distrusted(), disabled_count()) == (False, 40)


def test_a_flood_of_made_up_tokens_does_not_hide_that_real_ones_die():
    sends(DEAD, 19)
    sends(DEAD, 60, is_proven=False)
    sends(DEAD, 1)
    assert is_distrusted()


def test_one_phone_under_many_names_neither_trips_an_app_nor_makes_its_deaths_distrusted():
    """The phone is registered 500 times and sent to. Then each registration gets a made-up token."""
    phone = make_phone()
    same = {"address_digest": phone.address_digest, "delivered_digest": phone.delivered_digest}
    names = [make_phone(**same) for _ in range(40)]
    answered(DEAD, *[make_due(route=route) for route in names])  # the phone is off, or the app was removed
    assert (is_distrusted(), Halt.objects.exists()) == (False, False)
    Route.objects.filter(pk__in=[route.pk for route in names]).update(state="active", disabled_reason="")
    for route in names:
        Route.objects.filter(pk=route.pk).update(address_digest=secrets.token_bytes(36))
    refused = Result(Outcome.CONFIG, "DeviceTokenNotForTopic", is_guarded=True)
    for result in (DEAD, refused):
        asked = [make_request(sender_digest=secrets.token_bytes(32)) for _ in names]
        answered(result, *[make_due(route=fresh(r), request=request) for r, request in zip(names, asked, strict=True)])
        Route.objects.update(state="active", disabled_reason="")
    assert (is_distrusted(), Halt.objects.exists()) == (False, False)
    assert len(claimed(make_due_to_app())) == 1


def test_in_an_app_that_nothing_was_delivered_to_all_tokens_count():
    """A new server with a wrong set-up keeps its first phones. A made-up app harms nobody by this rule."""
    sends(DEAD, 25, app_topic="new.app", is_proven=False)
    assert disabled_count() == 0
    sends(DEAD, 5)
    assert (is_distrusted(), disabled_count()) == (False, 5)


def test_an_operator_may_still_trip_an_app_whose_tokens_die():
    sends(DEAD, 20)
    assert halts.trip(APPLE, reason="tokens die", by="ann", now=NOW)
    assert claimed(make_due_to_app()) == []
