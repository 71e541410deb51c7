"""Circuit breakers: what trips an app, and what does not."""

import re
import secrets
from dataclasses import replace
from datetime import timedelta

import pytest

from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Halt, Notification
from notifications.queues import halts
from tests.rig.delivering import APP, LONG_AGO, NOW, answered, claimed, fresh, make_due, prove, recorded
from tests.rig.rows import make_registration, make_request, make_route

APPLE = ChannelKey(1, APP)
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
    return Halt.objects.filter(kind="tripped", token_type=key.token_type, app_topic=key.app_topic).exists()


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
    assert Halt.objects.get().reason == "the last 10 sends failed: unknown (words that nobody knows)"
    assert not is_tripped(ChannelKey(2, ""))


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
    assert not Halt.objects.exists()


def test_failures_of_long_ago_do_not_count():
    sends(REFUSED, 9, now=NOW - timedelta(seconds=301))
    sends(REFUSED, 9)
    assert not is_tripped()


def test_failures_before_the_breaker_was_closed_do_not_count():
    sends(REFUSED, 10)
    later = NOW + timedelta(seconds=10)
    halts.close_breaker(APPLE, by="ann", now=later)
    sends(REFUSED, 9, now=later)
    assert not is_tripped()
    sends(REFUSED, 1, now=later)
    assert is_tripped()


def test_a_trip_keeps_the_queue():
    refused = [make_due_to_app() for _ in range(10)]
    answered(REFUSED, *refused)
    assert {fresh(n).state for n in refused} == {State.RETRYING}
    assert claimed(make_due_to_app()) == []


# Made-up registrations ------------------------------------------------------------------------------------------------


def test_made_up_tokens_trip_no_app_that_works():
    """Made-up tokens cost nothing: five refusals in a row used to stop all pushes."""
    sends(REFUSED, 40, is_proven=False)
    assert not is_tripped()


def test_failures_that_a_few_senders_asked_for_trip_nothing():
    sends(REFUSED, 20, sender=b"mallory")
    sends(REFUSED, 20, sender=b"her brother")
    assert not is_tripped()
    sends(REFUSED, 1)
    assert is_tripped()


def test_failures_at_a_few_addresses_trip_nothing():
    """Six refusals for three phones used to stop all pushes to Android."""
    phones = [make_due_to_app() for _ in range(4)]
    for phone in phones:
        for _ in range(5):
            request = make_request(sender_digest=secrets.token_bytes(32))
            answered(RESULTS["g"], make_due(route=phone.route, request=request))
    assert not is_tripped()
    sends(RESULTS["g"], 1)
    assert is_tripped()


def test_nobody_else_can_name_the_channel_of_the_canary(settings):
    assert re.fullmatch(r"canary\.[0-9a-f]{32}", settings.CANARY_DRY_RUN_TOPIC)
    assert settings.CANARY_DRY_RUN_TOPIC.removeprefix("canary.") not in settings.CANARY_DRY_RUN_TOKEN
