"""Tests of tokens refused as dead: believed one by one, and not believed in large numbers."""

from datetime import timedelta

import pytest

from notifications.messages import Outcome, Result
from notifications.models import Attempt, Channel, Halt, Notification
from notifications.queues import halts
from notifications.queues.tests.test_breakers import APPLE, DELIVERED, make_due_to_app, sends
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import NOW, answered, claimed, fresh, prove

DEAD = Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True)
HOUR = timedelta(hours=1)
State = Notification.State

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _limits():
    prove(APPLE)


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
    assert set(Attempt.objects.values_list("outcome", "is_guarded")) == {("dead", True)}
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
