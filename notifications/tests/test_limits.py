"""Tests of the limits of addresses, senders and the server, and of what happens beyond them."""

from datetime import timedelta

import pytest

from kit.buckets.shared import SharedBuckets
from notifications.acceptance import acceptance
from notifications.messages import ReportError
from notifications.models import Attempt, Notification
from notifications.queues.tests.test_admission import NOW, TOKEN, ask, reported, verdicts
from notifications.rules.policy import Verdict
from tests.rig.delivering import claimed
from tests.rig.rows import make_registration
from tests.rig.statements import statements

State = Notification.State
MESSAGE, MENTION, CONTACT_REQUEST = 1, 2, 4


# Requests -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def phone(monkeypatch):
    monkeypatch.setattr(acceptance, "own_buckets", lambda buckets=SharedBuckets(): buckets)  # noqa: B008
    return make_registration(access_token=TOKEN, allowed_mentions_chat_list=[b"chat"])


@pytest.mark.django_db
def test_a_flood_of_new_message_ids_is_one_wake_up_beyond_the_limit_and_success(phone):
    """Each used to be an alert on the phone, without any limit."""
    accepted = ask(*[phone] * 100)
    assert len(accepted.claims) == 30
    assert reported(accepted) == [ReportError.NONE] * 70
    [wake_up] = Notification.objects.filter(is_wake_up=True)
    assert (wake_up.state, wake_up.report, wake_up.chat_id, wake_up.message) == (State.PENDING, "success", None, None)
    assert NOW < wake_up.next_attempt_at < NOW + timedelta(seconds=10)
    assert verdicts() == [Verdict.COALESCED] * 69
    assert Notification.objects.count() == 31


@pytest.mark.django_db
def test_a_notification_beyond_the_limit_is_coalesced_into_a_waiting_wake_up(phone):
    ask(*[phone] * 100)
    assert reported(ask(*[phone] * 5)) == [ReportError.NONE] * 5
    assert Notification.objects.filter(is_wake_up=True).count() == 1


@pytest.mark.django_db
def test_a_wake_up_that_expires_soon_stands_for_nothing_new(phone):
    ask(*[phone] * 100)
    Notification.objects.filter(is_wake_up=True).update(expires_at=NOW + timedelta(hours=11))
    ask(*[phone] * 5)
    assert Notification.objects.filter(is_wake_up=True).count() == 2


@pytest.mark.django_db
def test_a_wake_up_goes_out_when_the_limit_allows_and_not_before(phone):
    ask(*[phone] * 31)
    [wake_up] = Notification.objects.filter(is_wake_up=True)
    assert claimed(wake_up, now=wake_up.next_attempt_at - timedelta(milliseconds=1)) == []
    [claim] = claimed(wake_up, now=wake_up.next_attempt_at)
    assert (claim.push.type, claim.push.message, claim.push.chat_id) == (MESSAGE, b"", b"")


@pytest.mark.django_db
@pytest.mark.parametrize("type_", [MENTION, CONTACT_REQUEST])
def test_a_flood_of_messages_leaves_mentions_and_contact_requests_alone(phone, type_):
    ask(*[phone] * 100)
    assert len(ask(phone, type_=type_).claims) == 1


@pytest.mark.django_db
def test_an_unknown_type_is_no_way_around_the_limit(phone):
    accepted = [ask(*[phone] * 50, type_=type_) for type_ in (MESSAGE, 99, -1)]
    assert sum(len(each.claims) for each in accepted) == 30


@pytest.mark.django_db
def test_a_flood_of_one_phone_leaves_all_others_alone(phone):
    others = [make_registration(access_token=TOKEN) for _ in range(20)]
    accepted = ask(*[phone] * 50, *others, *[phone] * 50)
    assert len(accepted.claims) == 50


@pytest.mark.django_db
def test_an_ordinary_request_costs_no_statement_for_its_limits(phone):
    ask(phone)
    with statements() as sent:
        ask(phone)
    assert not any("sharedbucket" in sql for sql in sent)


@pytest.mark.django_db
def test_the_answer_about_a_wake_up_waits_for_no_attempt_of_it(phone):
    accepted = ask(*[phone] * 31)
    assert [len(request.positions) for request in accepted.waiting] == [1] * 30 + [0]
    assert Attempt.objects.count() == 30
