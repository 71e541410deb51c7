"""Requests: what is decided, stored and answered."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from notifications import acceptance, channels, delivery
from notifications.acceptance import _CONSEQUENCES, Incoming, accept, dedup_key, withdraw
from notifications.backlog import Backlog
from notifications.messages import ChannelKey, PushNotification, PushRequest, ReportError
from notifications.models import Notification, NotificationRequest
from notifications.policy import Verdict
from notifications.reports import REPORT_ERRORS
from registrations.models import Registration, Route
from tests.delivering import APP, make_due_to_app
from tests.factories import make_notification, make_registration, make_route

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ALICE, BOB, NOBODY = b"\xaa" * 64, b"\xbb" * 64, b"\xcc" * 64
UUID = "11111111-1111-4111-8111-111111111111"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
SENDER = b"\x02" + b"\x05" * 32
SUCCESS = (True, ReportError.NONE)
WRONG_TOKEN = (False, ReportError.WRONG_TOKEN)
NOT_REGISTERED = (False, ReportError.NOT_REGISTERED)
GOOGLE = ChannelKey(2, "")
State = Notification.State


def make_recipient(public_key_hash=ALICE, **fields):
    return make_registration(public_key_hash=public_key_hash, installation_id=UUID, access_token=TOKEN, **fields)


def push(public_key_hash=ALICE, **fields):
    fields = {"installation_id": UUID, "access_token": TOKEN, "type": 1, "message": b"sealed"} | fields
    return PushNotification(public_key_hash, **fields)


def incoming(*pushes, amm=b"\x01" * 32, envelope=b"\x0e" * 32, message_id=b"status message"):
    return Incoming(amm, envelope, SENDER, PushRequest(message_id, pushes))


def told(answer):
    return [(report.success, report.error) for report in answer.reports]


def settled(accepted, now=NOW + timedelta(minutes=1)):
    return delivery.settle(accepted.waiting_request_ids, now=now)


@pytest.mark.django_db
def test_what_is_to_be_delivered_waits_for_its_first_attempt():
    registration = make_recipient()
    accepted = accept([incoming(push(chat_id=b"chat"))], now=NOW)
    row = Notification.objects.get()
    assert (accepted.answers, accepted.notification_ids) == ([], [row.pk])
    assert accepted.waiting_request_ids == [row.request_id]
    assert (row.state, row.report, row.route, row.route_generation) == (State.PENDING, None, registration.route, 1)
    assert (bytes(row.chat_id), bytes(row.message)) == (b"chat", b"sealed")
    assert (row.next_attempt_at, row.expires_at) == (NOW, NOW + DAY)
    assert row.request.reply_due_at == NOW + timedelta(seconds=2)
    assert bytes(row.request.reply_to) == SENDER


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("recipient", "asked", "state", "report"),
    [
        ({}, {"public_key_hash": NOBODY}, State.REFUSED, NOT_REGISTERED),
        ({}, {"installation_id": UUID.replace("-", "")}, State.REFUSED, NOT_REGISTERED),
        ({"route": None, "state": Registration.State.UNREGISTERED}, {}, State.REFUSED, NOT_REGISTERED),
        ({}, {"access_token": TOKEN.upper()}, State.REFUSED, WRONG_TOKEN),
        ({}, {"access_token": ""}, State.REFUSED, WRONG_TOKEN),
        ({"enabled": False}, {}, State.SUPPRESSED, SUCCESS),
        ({"blocked_chat_list": [b"author"]}, {"author": b"author"}, State.SUPPRESSED, SUCCESS),
        ({"muted_chat_list": [b"chat"]}, {"chat_id": b"chat"}, State.SUPPRESSED, SUCCESS),
    ],
)
def test_what_is_not_delivered_is_answered_at_once_and_keeps_no_payload(recipient, asked, state, report):
    make_recipient(**recipient)
    accepted = accept([incoming(push(**asked))], now=NOW)
    [answer] = accepted.answers
    row = Notification.objects.get()
    assert told(answer) == [report]
    assert (answer.reply_to, answer.envelope_hash, answer.message_id) == (SENDER, b"\x0e" * 32, b"status message")
    assert (row.state, row.chat_id, row.message, row.route, row.finished_at) == (state, None, None, None, NOW)
    assert (accepted.notification_ids, accepted.waiting_request_ids) == ([], [])
    assert row.request.reply_to is None


@pytest.mark.django_db
def test_an_installation_with_a_dead_token_is_not_registered():
    make_recipient(route=make_route(state=Route.State.DISABLED))
    [answer] = accept([incoming(push())], now=NOW).answers
    assert told(answer) == [NOT_REGISTERED]


@pytest.mark.django_db
def test_reports_keep_the_order_of_the_request_whenever_they_become_known():
    make_recipient(ALICE)
    make_recipient(BOB, enabled=False)
    pushes = [push(NOBODY), push(ALICE), push(BOB), push(ALICE, access_token="x")]
    accepted = accept([incoming(*pushes)], now=NOW)
    assert accepted.answers == []
    [answer] = settled(accepted)
    assert told(answer) == [NOT_REGISTERED, SUCCESS, SUCCESS, WRONG_TOKEN]
    assert [report.public_key_hash for report in answer.reports] == [NOBODY, ALICE, BOB, ALICE]


@pytest.mark.django_db
def test_type_zero_gets_no_report_and_no_push():
    make_recipient()
    [answer] = accept([incoming(push(type=0), push(NOBODY), push(type=0))], now=NOW).answers
    assert told(answer) == [NOT_REGISTERED]
    assert Notification.objects.get().position == 1


@pytest.mark.django_db
@pytest.mark.parametrize("notification_type", [4, 99, -1, 2**31 - 1, -(2**31)])
def test_types_that_we_do_not_know_are_stored_and_delivered(notification_type):
    make_recipient()
    assert len(accept([incoming(push(type=notification_type))], now=NOW).notification_ids) == 1
    assert Notification.objects.get().type == notification_type


@pytest.mark.django_db
def test_a_request_for_nobody_is_answered_with_an_empty_list():
    [answer] = accept([incoming()], now=NOW).answers
    assert answer.reports == ()


@pytest.mark.django_db
def test_an_empty_batch_is_nothing():
    accepted = accept([], now=NOW)
    assert (accepted.answers, accepted.waiting_request_ids, accepted.notification_ids) == ([], [], [])


# The same thing twice -------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_repeat_after_the_answer_gets_the_same_answer_for_its_own_envelope():
    make_recipient()
    accepted = accept([incoming(push(), push(NOBODY))], now=NOW)
    [first] = settled(accepted)
    repeated = accept([incoming(push(), push(NOBODY), envelope=b"\x0f" * 32)], now=NOW + timedelta(minutes=2))
    assert repeated.answers == [replace(first, envelope_hash=b"\x0f" * 32)]
    assert repeated.notification_ids == repeated.waiting_request_ids == []
    assert Notification.objects.count() == 2


@pytest.mark.django_db
def test_a_repeat_is_answered_as_before_even_when_the_recipient_has_changed_meanwhile():
    [first] = accept([incoming(push())], now=NOW).answers
    make_recipient()
    [again] = accept([incoming(push())], now=NOW).answers
    assert told(first) == told(again) == [NOT_REGISTERED]


@pytest.mark.django_db
def test_a_repeat_before_the_answer_gets_none_of_its_own():
    make_recipient()
    accept([incoming(push())], now=NOW)
    repeated = accept([incoming(push(), envelope=b"\x0f" * 32)], now=NOW)
    assert (repeated.answers, repeated.notification_ids, repeated.waiting_request_ids) == ([], [], [])


@pytest.mark.django_db
def test_the_same_request_twice_in_one_batch_is_one_request():
    make_recipient()
    twice = [incoming(push()), incoming(push(), envelope=b"\x0f" * 32)]
    accepted = accept(twice, now=NOW)
    assert len(accepted.notification_ids) == NotificationRequest.objects.count() == 1
    assert len(settled(accepted)) == 1


@pytest.mark.django_db
def test_the_same_refused_request_twice_in_one_batch_is_answered_once():
    twice = [incoming(push()), incoming(push(), envelope=b"\x0f" * 32)]
    assert len(accept(twice, now=NOW).answers) == 1


@pytest.mark.django_db
def test_the_same_push_twice_in_one_request_is_delivered_once():
    make_recipient()
    accepted = accept([incoming(push(), push())], now=NOW)
    assert [row.state for row in Notification.objects.order_by("position")] == [State.PENDING, State.DUPLICATE]
    [answer] = settled(accepted)
    assert told(answer) == [SUCCESS, SUCCESS]


@pytest.mark.django_db
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_the_same_push_in_two_requests_is_delivered_once(in_one_batch):
    make_recipient()
    requests = [incoming(push()), incoming(push(), amm=b"\x02" * 32)]
    batches = [requests] if in_one_batch else [[request] for request in requests]
    assert sum(len(accept(batch, now=NOW).notification_ids) for batch in batches) == 1
    assert Notification.objects.order_by("pk").last().state == State.DUPLICATE


@pytest.mark.django_db
def test_a_push_with_the_wrong_token_does_not_take_the_place_of_the_right_one():
    make_recipient()
    accept([incoming(push(access_token="guessed"))], now=NOW)
    assert len(accept([incoming(push(), amm=b"\x02" * 32)], now=NOW).notification_ids) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(("after", "count"), [(DAY - timedelta(seconds=1), 0), (DAY, 1)])
def test_the_same_push_may_be_delivered_again_after_a_day(after, count):
    make_recipient()
    accept([incoming(push())], now=NOW)
    assert len(accept([incoming(push(), amm=b"\x02" * 32)], now=NOW + after).notification_ids) == count


@pytest.mark.django_db
def test_another_message_to_the_same_installation_is_another_push():
    make_recipient()
    accept([incoming(push())], now=NOW)
    another = incoming(push(), amm=b"\x02" * 32, message_id=b"another message")
    assert len(accept([another], now=NOW).notification_ids) == 1


def test_parts_of_a_dedup_key_cannot_be_shifted_into_each_other():
    assert dedup_key(b"ab", push(b"c")) != dedup_key(b"a", push(b"bc"))
    assert dedup_key(b"a", push(b"b", installation_id="cd")) != dedup_key(b"a", push(b"bc", installation_id="d"))


# The database ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_accepts_200_requests_with_as_many_statements_as_one(django_assert_max_num_queries, django_assert_num_queries):
    hashes = [number.to_bytes(2) * 32 for number in range(50)]
    for public_key_hash in hashes:
        make_recipient(public_key_hash)
    with django_assert_max_num_queries(8) as one:
        accept([incoming(push(hashes[0]))], now=NOW)
    batch = [incoming(push(h), amm=bytes([n]) * 32) for n, h in enumerate(hashes[1:], start=2)]
    with django_assert_num_queries(len(one)):
        assert len(accept(batch, now=NOW).notification_ids) == 49


@pytest.mark.django_db
def test_loads_only_the_installations_asked_for_and_not_every_combination(django_assert_max_num_queries):
    ids = [f"{number:08x}-1111-4111-8111-111111111111" for number in range(5)]
    hashes = [bytes([number]) * 64 for number in range(5)]
    for public_key_hash in hashes:
        for installation_id in ids:
            make_registration(public_key_hash=public_key_hash, installation_id=installation_id)
    pushes = [push(h, installation_id=i, access_token="?") for h, i in zip(hashes, ids, strict=True)]
    with django_assert_max_num_queries(8) as queries:
        accept([incoming(*pushes)], now=NOW)
    [sql] = [q["sql"] for q in queries.captured_queries if "access_token_digest" in q["sql"]]
    assert "unnest" in sql
    assert {told_error for _, told_error in told(accept([incoming(*pushes)], now=NOW).answers[0])} == {1}


# Withdrawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.PENDING, State.RETRYING, State.AMBIGUOUS])
def test_what_waits_is_withdrawn_with_its_payload(state):
    row = make_notification(public_key_hash=ALICE, installation_id=UUID, state=state, chat_id=b"c", message=b"m")
    withdraw({(ALICE, UUID)}, now=NOW)
    row.refresh_from_db()
    assert (row.state, row.chat_id, row.message, row.next_attempt_at) == (State.WITHDRAWN, None, None, None)
    assert row.finished_at == NOW


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.IN_FLIGHT, State.DELIVERED, State.REFUSED])
def test_what_is_over_or_on_its_way_is_not_withdrawn(state):
    row = make_notification(public_key_hash=ALICE, installation_id=UUID, state=state)
    withdraw({(ALICE, UUID)}, now=NOW)
    row.refresh_from_db()
    assert row.state == state


@pytest.mark.django_db
def test_withdraws_exactly_the_installations_named():
    other = make_notification(public_key_hash=ALICE, installation_id="other")
    stranger = make_notification(public_key_hash=BOB, installation_id=UUID)
    withdraw({(ALICE, UUID), (BOB, "other")}, now=NOW)
    withdraw(set(), now=NOW)
    assert set(Notification.objects.filter(state=State.PENDING)) == {other, stranger}


# Tables ---------------------------------------------------------------------------------------------------------------


def test_every_verdict_has_its_consequence():
    assert set(_CONSEQUENCES) == set(Verdict)


def test_every_report_has_its_wire_code():
    assert set(REPORT_ERRORS) == set(Notification.Reports)
    assert set(REPORT_ERRORS.values()) == set(ReportError)


@pytest.fixture
def overloaded(settings, monkeypatch):
    settings.MAX_OPEN_NOTIFICATIONS = 1
    make_notification()
    monkeypatch.setattr(acceptance, "own_backlog", Backlog)


@pytest.mark.django_db
def test_what_is_refused_for_overload_is_told_and_never_delivered(overloaded):
    make_recipient()
    accepted = accept([incoming(push())], now=NOW)
    assert [told(answer) for answer in accepted.answers] == [[(False, ReportError.INTERNAL_ERROR)]]
    assert (accepted.notification_ids, accepted.waiting_request_ids) == ([], [])
    row = Notification.objects.get(request__amm_message_id=b"\x01" * 32)
    assert (row.state, row.dedup_key, row.message, row.next_attempt_at) == (State.REFUSED, None, None, None)


@pytest.mark.django_db
def test_a_new_request_for_what_was_refused_for_overload_is_delivered(overloaded, settings):
    make_recipient()
    accept([incoming(push())], now=NOW)
    settings.MAX_OPEN_NOTIFICATIONS = 100
    assert len(accept([incoming(push(), amm=b"\x02" * 32, envelope=b"\x0f" * 32)], now=NOW).notification_ids) == 1


@pytest.mark.django_db
def test_the_backlog_is_counted_now_and_then_only(django_assert_num_queries):
    backlog = Backlog()
    with django_assert_num_queries(2):
        assert [backlog.is_full(GOOGLE, 1) for _ in range(3)] == [False] * 3
    make_notification()
    assert Backlog().is_full(GOOGLE, 1)
    assert not Backlog().is_full(GOOGLE, 2)


@pytest.mark.django_db
def test_what_is_parked_for_a_paused_app_fills_the_share_of_that_app_alone():
    at = timezone.now()
    parked = [make_due_to_app(APP, at=at, expires_at=at + timedelta(days=1)).pk for _ in range(3)]
    channels.pause(ChannelKey(1, APP), by="op", why="new key", now=at)
    channels.park(parked)

    assert Backlog().is_full(ChannelKey(1, APP), 3)
    assert not Backlog().is_full(ChannelKey(1, APP), 4)
    assert not Backlog().is_full(ChannelKey(1, "another.app"), 3)
    assert not Backlog().is_full(GOOGLE, 3)
