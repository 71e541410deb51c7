"""Circuit breakers: what trips an app, and what does not; and tokens refused as dead, believed one by one and not in
large numbers.
"""

import re
import secrets
from dataclasses import replace
from datetime import timedelta

import pytest

from notifications.messages import AppKey, Outcome, Result
from notifications.models import Attempt, Channel, Halt, Notification
from notifications.queues import halts
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import APP, LONG_AGO, NOW, answered, claimed, fresh, make_due, prove, recorded
from tests.rig.rows import make_registration, make_request, make_route

APPLE = AppKey(1, APP)
REFUSED = Result(Outcome.CONFIG, "InvalidProviderToken")
DELIVERED = Result(Outcome.DELIVERED)
State = Notification.State

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _limits():
    prove(APPLE)


def make_due_to_app(app_topic=APP, *, is_proven=True, sender=None):
    """Create a notification of a sender of its own, for a proven address."""
    route = make_route(token_type=1, app_topic=app_topic, last_success_at=LONG_AGO if is_proven else None)
    request = make_request(sender_digest=sender or secrets.token_bytes(32))
    return make_due(route=make_registration(route=route).route, request=request)


def sends(result, count, *, now=NOW, **who):
    answered(result, *[make_due_to_app(**who) for _ in range(count)], now=now)


def is_tripped(key=APPLE):
    return Halt.objects.in_force().filter(kind="tripped", token_type=key.token_type, app_topic=key.app_topic).exists()


def ends(letters, *, start=NOW):
    """Make sends end one after the other, each with the result of its letter."""
    for number, letter in enumerate(letters):
        sends(RESULTS[letter], 1, now=start + timedelta(milliseconds=number))


RESULTS = {
    "c": REFUSED,
    "t": Result(Outcome.TRANSIENT, "unknown", error="words that nobody knows"),
    "a": Result(Outcome.AMBIGUOUS, "connection_lost"),
    "g": Result(Outcome.CONFIG, "third_party_auth", is_guarded=True),
    "d": DELIVERED,
    "x": Result(Outcome.DEAD, "Unregistered"),
    "p": Result(Outcome.PAYLOAD, "PayloadTooLarge"),
    "y": Result(Outcome.DELIVERED, "dry_run", is_dry_run=True),
    "l": Result(Outcome.TRANSIENT, "TooManyRequests"),
    "u": Result(Outcome.TRANSIENT, "unreachable", is_unreached=True),
    "n": Result(Outcome.CONFIG, "no_gateway", is_untried=True),
}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ("c" * 10, True),
        ("t" * 10, True),
        ("a" * 10, True),
        ("g" * 10, True),
        ("ctagctagct", True),
        ("ctagctagc", False),
        ("d" + "t" * 10, True),
        ("t" * 9 + "d" + "t" * 9, False),
        ("t" * 9 + "x" + "t" * 9, False),
        ("t" * 9 + "p" + "t" * 9, False),
        ("t" * 5 + "y" + "t" * 5, True),
        ("t" * 5 + "luln" + "t" * 5, True),
        ("l" * 20, False),
        ("u" * 20, False),
        ("n" * 20, False),
        ("x" * 20, False),
        ("p" * 20, False),
    ],
)
def test_ten_failures_in_a_row_trip_an_app_whatever_the_words(results, expected):
    ends(results)
    assert is_tripped() == expected


def test_a_trip_names_the_commonest_answer_and_concerns_no_other_app():
    ends("tttattcttt")
    assert Halt.objects.in_force().get().reason == "the last 10 sends failed: unknown (words that nobody knows)"
    assert not is_tripped(AppKey(2, ""))


def test_sends_are_in_a_row_by_their_ends():
    """Pushes that hang end long after others that began later and were delivered."""
    hanging = claimed(*[make_due_to_app() for _ in range(10)])
    sends(DELIVERED, 1, now=NOW + timedelta(seconds=30))
    late = replace(RESULTS["a"], ended_at=NOW + timedelta(seconds=20))
    recorded([(claim, late) for claim in hanging], now=NOW + timedelta(seconds=31))
    assert not is_tripped()
    ends("a" * 10, start=NOW + timedelta(seconds=40))
    assert is_tripped()


def test_apps_that_nothing_was_delivered_to_have_no_breaker():
    """They share a queue, so made-up apps could otherwise stop all others."""
    for number in range(4):
        sends(REFUSED, 10, app_topic=f"made.up.{number}")
    assert not Halt.objects.in_force().exists()


def test_failures_of_long_ago_do_not_count():
    sends(REFUSED, 9, now=NOW - timedelta(seconds=301))
    sends(REFUSED, 9)
    assert not is_tripped()


def test_failures_before_the_breaker_was_closed_do_not_count():
    sends(REFUSED, 10)
    later = NOW + timedelta(seconds=10)
    halts.end(halts.Kind.TRIPPED, APPLE, by="ann", now=later)
    sends(REFUSED, 9, now=later)
    assert not is_tripped()
    sends(REFUSED, 1, now=later)
    assert is_tripped()


# Made-up registrations ------------------------------------------------------------------------------------------------


def test_failures_that_a_few_senders_asked_for_trip_nothing():
    sends(REFUSED, 20, sender=b"mallory")
    sends(REFUSED, 20, sender=b"her brother")
    assert not is_tripped()
    sends(REFUSED, 1)
    assert is_tripped()


def test_nobody_else_can_name_the_app_of_the_canary(settings):
    assert re.fullmatch(r"canary\.[0-9a-f]{32}", settings.CANARY_DRY_RUN_TOPIC)
    assert settings.CANARY_DRY_RUN_TOPIC.removeprefix("canary.") not in settings.CANARY_DRY_RUN_TOKENS[0]


# Tokens refused as dead -----------------------------------------------------------------------------------------------

DEAD = Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True)


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
    assert not Halt.objects.in_force().exists()
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
    sends(DEAD, 19, now=NOW - timedelta(seconds=3601))
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
    answered(DELIVERED, *pushes[:5], now=later)
    assert is_distrusted()
    answered(DELIVERED, *pushes[5:], now=later)
    assert {fresh(n).state for n in pushes} == {State.DELIVERED}
    assert (is_distrusted(), disabled_count()) == (False, 0)
    answered(DEAD, make_due_to_app(), now=later)
    assert disabled_count() == 1


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
