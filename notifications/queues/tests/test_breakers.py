"""Circuit breakers: refusals for the set-up trip an app, and nothing else does."""

import re
import secrets
from dataclasses import replace
from datetime import timedelta

import pytest

from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Halt, Notification
from notifications.queues import halts
from tests.delivering import APP, LONG_AGO, NOW, answered, claimed, fresh, make_due, prove
from tests.factories import make_registration, make_request, make_route

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


def test_refusals_in_a_row_trip_the_channel_and_no_other():
    answered(REFUSED, *[make_due() for _ in range(4)])
    sends(DELIVERED, 20, now=NOW - timedelta(seconds=1))
    sends(REFUSED, 4)
    assert not is_tripped()
    sends(REFUSED, 1, now=NOW + timedelta(seconds=1))
    assert is_tripped()
    assert Halt.objects.get().reason == "5 of 25 sends refused: InvalidProviderToken"
    assert not is_tripped(ChannelKey(2, ""))


def test_refusals_of_half_of_the_sends_trip_the_channel():
    for _ in range(5):
        sends(REFUSED, 1)
        sends(DELIVERED, 1)
    assert is_tripped()


def test_apps_that_nothing_was_delivered_to_have_no_breaker():
    """They share a queue, so made-up apps could otherwise stop all others."""
    for number in range(4):
        sends(REFUSED, 5, app_topic=f"made.up.{number}")
    assert not Halt.objects.exists()


def test_untried_pushes_trip_no_channel():
    sends(replace(REFUSED, is_untried=True), 20)
    assert not is_tripped()


def test_a_few_refusals_among_many_sends_trip_no_channel():
    for _ in range(5):
        sends(REFUSED, 1)
        sends(DELIVERED, 2)
    assert not is_tripped()


def test_refusals_of_long_ago_do_not_count():
    sends(REFUSED, 4, now=NOW - timedelta(seconds=301))
    sends(REFUSED, 4)
    assert not is_tripped()


def test_refusals_before_the_breaker_was_closed_do_not_count():
    sends(REFUSED, 5)
    later = NOW + timedelta(seconds=10)
    halts.close_breaker(APPLE, by="ann", now=later)
    sends(REFUSED, 4, now=later)
    assert not is_tripped()
    sends(REFUSED, 1, now=later)
    assert is_tripped()


def test_a_trip_keeps_the_queue():
    refused = [make_due_to_app() for _ in range(5)]
    answered(REFUSED, *refused)
    assert {fresh(n).state for n in refused} == {State.RETRYING}
    assert claimed(make_due_to_app()) == []


# Made-up registrations ------------------------------------------------------------------------------------------------


def test_made_up_tokens_trip_no_app_that_works():
    """Made-up tokens cost nothing: five refusals in a row used to stop all pushes."""
    sends(REFUSED, 40, is_proven=False)
    assert not is_tripped()


def test_refusals_that_a_few_senders_asked_for_trip_nothing():
    sends(REFUSED, 20, sender=b"mallory")
    sends(REFUSED, 20, sender=b"her brother")
    assert not is_tripped()
    sends(REFUSED, 1)
    assert is_tripped()


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_refusal_that_may_be_the_tokens_fault_counts_for_addresses_that_were_reached_before(is_proven):
    sends(replace(REFUSED, code="third_party_auth", is_guarded=True), 20, is_proven=is_proven)
    assert is_tripped() == is_proven


def test_nobody_else_can_name_the_channel_of_the_canary(settings):
    assert re.fullmatch(r"canary\.[0-9a-f]{32}", settings.CANARY_DRY_RUN_TOPIC)
    assert settings.CANARY_DRY_RUN_TOPIC.removeprefix("canary.") not in settings.CANARY_DRY_RUN_TOKEN
