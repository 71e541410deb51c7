"""What trips a channel by itself: refusals for the set-up, and tokens that die in numbers."""

import re
import secrets
from dataclasses import replace
from datetime import timedelta

import pytest

from notifications import channels
from notifications.messages import ChannelKey, Outcome, Result
from notifications.models import Attempt, Channel, Notification
from registrations.models import RegistrationEvent, Route
from tests.delivering import APP, LONG_AGO, NOW, answered, claimed, fresh, make_due, prove, recorded
from tests.factories import make_registration, make_request, make_route

APPLE = ChannelKey(1, APP)
DEAD = Result(Outcome.DEAD, "BadDeviceToken", is_guarded=True)
REFUSED = Result(Outcome.CONFIG, "InvalidProviderToken")
DELIVERED = Result(Outcome.DELIVERED)
State = Notification.State

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _limits(settings):
    settings.CONFIG_TRIP_COUNT, settings.CONFIG_TRIP_SECONDS, settings.DEAD_TOKEN_SHARE = 5, 300, 0.2


def make_due_to_app(apn_topic=APP, *, is_proven=True, sender=None):
    """A notification that somebody else asked for each time, to an address that was reached before."""
    route = make_route(token_type=1, apn_topic=apn_topic, last_success_at=LONG_AGO if is_proven else None)
    request = make_request(sender_digest=sender or secrets.token_bytes(32))
    return make_due(route=make_registration(route=route).route, request=request)


def sends(result, count, *, now=NOW, **who):
    answered(result, *[make_due_to_app(**who) for _ in range(count)], now=now)


def is_tripped(key=APPLE):
    return Channel.objects.filter(**key._asdict(), state=Channel.State.TRIPPED).exists()


def disabled_count():
    return Route.objects.filter(state=Route.State.DISABLED).count()


def test_refusals_in_a_row_trip_the_channel_and_no_other():
    answered(REFUSED, *[make_due() for _ in range(4)])
    sends(DELIVERED, 20, now=NOW - timedelta(seconds=1))
    sends(REFUSED, 4)
    assert not is_tripped()
    sends(REFUSED, 1, now=NOW + timedelta(seconds=1))
    assert is_tripped()
    assert Channel.objects.get(state="tripped").reason == "5 of 25 sends refused: InvalidProviderToken"
    assert not is_tripped(ChannelKey(2, ""))


def test_refusals_of_half_of_the_sends_trip_the_channel():
    for _ in range(5):
        sends(REFUSED, 1)
        sends(DELIVERED, 1)
    assert is_tripped()


def test_made_up_apps_fill_neither_the_console_nor_the_log(monkeypatch):
    monkeypatch.setattr(channels, "MAX_UNPROVEN", 2)
    for number in range(4):
        answered(REFUSED, *[make_due_to_app(f"made.up.{number}") for _ in range(5)])
    assert Channel.objects.count() == 2


def test_an_app_that_works_is_tripped_however_many_are_made_up(monkeypatch):
    monkeypatch.setattr(channels, "MAX_UNPROVEN", 0)
    prove(APPLE)
    sends(REFUSED, 5)
    assert is_tripped()


def test_what_was_not_even_tried_does_not():
    sends(replace(REFUSED, is_untried=True), 20)
    assert not is_tripped()


def test_a_few_refusals_among_many_sends_do_not():
    for _ in range(5):
        sends(REFUSED, 1)
        sends(DELIVERED, 2)
    assert not is_tripped()


def test_refusals_of_long_ago_do_not_count():
    sends(REFUSED, 4, now=NOW - timedelta(seconds=301))
    sends(REFUSED, 4)
    assert not is_tripped()


def test_what_was_refused_before_the_channel_was_resumed_does_not_count():
    sends(REFUSED, 5)
    later = NOW + timedelta(seconds=10)
    channels.resume(APPLE, by="ann", now=later)
    sends(REFUSED, 4, now=later)
    assert not is_tripped()
    sends(REFUSED, 1, now=later)
    assert is_tripped()


def test_a_trip_keeps_the_queue():
    refused = [make_due_to_app() for _ in range(5)]
    answered(REFUSED, *refused)
    assert {fresh(n).state for n in refused} == {State.RETRYING}
    assert claimed(make_due_to_app()) == []


def test_tokens_dying_in_numbers_trip_the_channel_and_nothing_is_disabled_any_more():
    sends(DELIVERED, 79)
    sends(DEAD, 19)
    assert (is_tripped(), disabled_count()) == (False, 19)
    sends(DEAD, 10)
    assert (is_tripped(), disabled_count()) == (True, 19)
    assert RegistrationEvent.objects.filter(kind=RegistrationEvent.Kind.TOKEN_DIED).count() == 19
    assert Channel.objects.get(state="tripped").reason == "29 of 108 sends found a dead token"


def test_a_batch_that_trips_the_channel_disables_nothing_at_all():
    sends(DEAD, 20)
    assert (is_tripped(), disabled_count()) == (True, 0)


def test_what_met_a_doubtful_verdict_is_kept_and_tried_again():
    doubtful = [make_due_to_app() for _ in range(20)]
    answered(DEAD, *doubtful)
    assert {fresh(n).state for n in doubtful} == {State.RETRYING}
    assert set(Attempt.objects.values_list("outcome", "is_guarded")) == {("dead", True)}


def test_results_that_come_in_after_the_trip_disable_nothing():
    late = [(held, DEAD) for held in claimed(make_due_to_app())]
    channels.trip(APPLE, reason="", now=NOW)
    recorded(late)
    assert disabled_count() == 0


def test_a_usual_share_of_dead_tokens_is_disabled_one_by_one():
    sends(DELIVERED, 100)
    sends(DEAD, 25)
    assert (is_tripped(), disabled_count()) == (False, 25)


def test_verdicts_that_no_set_up_explains_are_always_believed():
    sends(Result(Outcome.DEAD, "Unregistered"), 30)
    assert (is_tripped(), disabled_count()) == (False, 30)
    channels.trip(APPLE, reason="", now=NOW)
    recorded([(held, Result(Outcome.DEAD)) for held in claimed(make_due_to_app(), now=NOW + timedelta(hours=1))])
    assert disabled_count() == 31


def test_deaths_of_more_than_an_hour_ago_do_not_count():
    sends(DEAD, 19, now=NOW - timedelta(hours=1, seconds=1))
    sends(DEAD, 19)
    assert not is_tripped()


# Strangers ------------------------------------------------------------------------------------------------------------


def test_made_up_tokens_trip_no_app_that_works():
    """They cost nothing: twenty of them used to stop everybody's pushes, and five refusals in a row did."""
    prove(APPLE)
    sends(DEAD, 40, is_proven=False)
    sends(REFUSED, 40, is_proven=False)
    assert (is_tripped(), disabled_count()) == (False, 40)


def test_a_flood_of_made_up_tokens_does_not_hide_that_real_ones_die():
    prove(APPLE)
    sends(DEAD, 19)
    sends(DEAD, 60, is_proven=False)
    sends(DEAD, 1)
    assert is_tripped()


def test_refusals_that_a_few_senders_asked_for_trip_nothing():
    prove(APPLE)
    sends(REFUSED, 20, sender=b"mallory")
    sends(REFUSED, 20, sender=b"her brother")
    assert not is_tripped()
    sends(REFUSED, 1)
    assert is_tripped()


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_refusal_that_may_be_the_tokens_fault_counts_for_addresses_that_were_reached_before(is_proven):
    sends(replace(REFUSED, code="third_party_auth", is_guarded=True), 20, is_proven=is_proven)
    assert is_tripped() == is_proven


def test_an_app_that_never_worked_is_tripped_by_any_refusals():
    sends(REFUSED, 5, is_proven=False)
    assert is_tripped()


def test_nobody_else_can_name_the_channel_of_the_canary(settings):
    assert re.fullmatch(r"canary\.[0-9a-f]{32}", settings.CANARY_DRY_RUN_TOPIC)
    assert settings.CANARY_DRY_RUN_TOPIC.removeprefix("canary.") not in settings.CANARY_DRY_RUN_TOKEN
