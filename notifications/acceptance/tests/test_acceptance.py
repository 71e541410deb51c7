"""Tests of acceptance: the decision about each notification, what is stored, and the answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connection

from kit.db.base import connection_parameters, fetch
from notifications import retention
from notifications.acceptance import acceptance
from notifications.acceptance.acceptance import Incoming, dedup_key, withdraw
from notifications.messages import AppKey, Outcome, PushLimit, PushNotification, PushRequest, ReportError
from notifications.models import (
    Attempt,
    DecidedAtOnce,
    EndedNotification,
    Notification,
    NotificationRequest,
    RefusedRequest,
    RequestDigest,
)
from notifications.policy import Verdict, Wish
from notifications.queues import halts
from notifications.queues.capacity import ConcurrencyLimits, Slot, own_admission
from notifications.reports import CODES, REASON_CODES, REPORT_ERRORS, unpack
from registrations.encryption import Keyring, Purpose
from registrations.models import Registration, Route
from tests.rig.delivering import APP, LEASE, prove, settle, take
from tests.rig.rows import end_open, make_attempt, make_notification, make_registration, make_route
from tests.rig.statements import statements

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ALICE, BOB, NOBODY = b"\xaa" * 64, b"\xbb" * 64, b"\xcc" * 64
UUID = "11111111-1111-4111-8111-111111111111"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"
SENDER = b"\x02" + b"\x05" * 32
ADDRESS = b"wherever the bridge wants it"
BRIDGE = "test-bridge"
SUCCESS = (True, ReportError.NONE)
WRONG_TOKEN = (False, ReportError.WRONG_TOKEN)
NOT_REGISTERED = (False, ReportError.NOT_REGISTERED)
GOOGLE = AppKey(2, "")
State = Notification.State

pytestmark = pytest.mark.django_db


def make_recipient(public_key_hash=ALICE, *, is_dead=False, **fields):
    fields |= {"route": make_route(state=Route.State.DISABLED)} if is_dead else {}
    return make_registration(public_key_hash=public_key_hash, installation_id=UUID, access_token=TOKEN, **fields)


def push(public_key_hash=ALICE, **fields):
    fields = {"installation_id": UUID, "access_token": TOKEN, "type": 1, "message": b"sealed"} | fields
    return PushNotification(public_key_hash, **fields)


def incoming(*pushes, amm=b"\x01" * 32, envelope=b"\x0e" * 32, message_id=b"status message"):
    return Incoming(amm, envelope, ADDRESS, SENDER, PushRequest(message_id, pushes), NOW)


def accept(batch, *, now, limits=None, bridge=BRIDGE):
    return acceptance.accept(bridge, batch, limits=limits or ConcurrencyLimits(1000, connections=10_000), now=now)


def reported(answer):
    return [(report.success, report.error) for report in answer.reports]


def settled(accepted, now=NOW + timedelta(minutes=1)):
    return settle(waiting_ids(accepted), now=now)


def waiting_ids(accepted):
    return [request.id for request in accepted.waiting]


def decided():
    """Return the decisions made at once, of all requests."""
    requests = NotificationRequest.objects.order_by("pk")
    return [(d.position, d.verdict, d.type) for request in requests for d in unpack(request.decided)]


def claimed_ids(accepted):
    return [claim.notification_id for claim in accepted.claims]


def test_an_accepted_notification_is_stored_with_its_first_attempt():
    registration = make_recipient()
    accepted = accept([incoming(push(chat_id=b"chat"))], now=NOW)
    row = Notification.objects.get()
    assert (accepted.answers, claimed_ids(accepted)) == ([], [row.pk])
    assert waiting_ids(accepted) == [row.request_id]
    assert (row.state, row.report, row.route, row.route_generation) == (State.IN_FLIGHT, None, registration.route, 1)
    assert (bytes(row.chat_id), bytes(row.message)) == (b"chat", b"sealed")
    assert (row.due_at, row.expires_at) == (NOW + LEASE, NOW + DAY)
    attempt = Attempt.objects.get()
    assert (attempt.notification, attempt.number, attempt.gateway) == (row, 1, registration.route.gateway)
    assert (attempt.started_at, attempt.outcome, row.attempt_count) == (NOW, None, 1)
    assert row.request.reply_due_at == NOW + timedelta(seconds=2)
    assert (row.request.bridge, bytes(row.request.reply_address)) == (BRIDGE, ADDRESS)


@pytest.mark.parametrize(("arrived_ms", "due_ms"), [(0, 2000), (249, 2000), (250, 2250), (999, 2750)])
def test_requests_of_the_same_quarter_of_a_second_are_due_together(arrived_ms, due_ms):
    make_recipient()
    accept([incoming(push())], now=NOW + timedelta(milliseconds=arrived_ms))
    assert NotificationRequest.objects.get().reply_due_at == NOW + timedelta(milliseconds=due_ms)


def test_a_claim_at_acceptance_equals_the_claim_of_any_worker():
    """One claim goes to the gateway from acceptance. The other is read from the table after its lease ran out."""
    registration = make_recipient(route=make_route(token_type=1, app_topic=APP, device_token="device"))
    [straight] = accept([incoming(push(chat_id=b"chat", type=-(2**31)))], now=NOW).claims
    [stored] = take(now=NOW + LEASE)
    first = {"attempt_number": 1, "is_lost": False, "ambiguous_count": 0, "tried_at": None}
    assert straight == replace(stored, **first, attempt_id=straight.attempt_id, started_at=NOW, due_at=NOW)
    assert bytes(Notification.objects.get().collapse_id).hex() == straight.collapse_id
    assert (straight.type, straight.public_key_hash) == (-(2**31), ALICE)
    assert (straight.chat_id, straight.message) == (b"chat", b"sealed")
    assert (straight.address, straight.app) == (b"device", AppKey(1, APP))
    assert "device" not in repr(straight)
    assert straight.route_id == registration.route_id


@pytest.mark.parametrize("obstacle", ["drained", "paused", "unreadable"])
def test_acceptance_claims_nothing_that_no_worker_would_claim(obstacle):
    prove(GOOGLE)
    route = make_recipient().route
    if obstacle == "drained":
        halts.begin(halts.Kind.DRAINED, by="ann", reason="gorush moves", now=NOW)
    elif obstacle == "paused":
        halts.begin(halts.Kind.PAUSED, GOOGLE, by="ann", reason="new key", now=NOW)
    else:
        sealed = Keyring([b"\x77" * 32]).encrypt(Purpose.ADDRESS, b"lost")
        Route.objects.filter(pk=route.pk).update(address_encrypted=sealed)
    accepted = accept([incoming(push())], now=NOW, limits=(limits := ConcurrencyLimits(1)))
    assert (accepted.claims, Attempt.objects.count()) == ([], 0)
    assert Notification.objects.get().state == State.PENDING
    assert len(waiting_ids(accepted)) == 1
    assert limits.enter(Slot(Notification.objects.get().queue_id))


@pytest.mark.requirement("SN6")
def test_a_notification_that_is_suppressed_is_answered_later_and_keeps_its_reason_and_no_payload():
    """Which notifications are suppressed is in `test_policy`."""
    make_recipient(muted_chat_list=[b"chat"])
    accepted = accept([incoming(push(chat_id=b"chat"), push(access_token="wrong"))], now=NOW)
    assert (Notification.objects.count(), accepted.claims, accepted.answers) == (0, [], [])
    [answer] = settled(accepted)
    request = NotificationRequest.objects.get()
    assert reported(answer) == [SUCCESS, WRONG_TOKEN]
    assert (answer.bridge, answer.reply_address) == (BRIDGE, ADDRESS)
    assert (answer.source_key, answer.message_id) == (b"\x0e" * 32, b"status message")
    assert [(d.verdict, d.type, d.why) for d in unpack(request.decided)] == [
        (Verdict.SUPPRESSED, 1, Wish.CHAT_MUTED),
        (Verdict.WRONG_TOKEN, 1, None),
    ]
    assert (request.reply_address, request.names) == (None, None)


@pytest.mark.requirement("SN6")
@pytest.mark.parametrize(
    ("recipient", "asked", "report"),
    [
        ({}, {"public_key_hash": NOBODY}, NOT_REGISTERED),
        ({}, {"installation_id": UUID.replace("-", "")}, NOT_REGISTERED),
        ({"route": None, "state": Registration.State.UNREGISTERED}, {}, NOT_REGISTERED),
        ({"is_dead": True}, {}, NOT_REGISTERED),
        ({}, {"access_token": TOKEN.upper()}, WRONG_TOKEN),
        ({}, {"access_token": ""}, WRONG_TOKEN),
    ],
)
def test_a_request_that_notifies_nobody_is_answered_at_once_and_leaves_its_verdict_alone(recipient, asked, report):
    make_recipient(**recipient)
    accepted = accept([incoming(push(**asked))], now=NOW)
    [answer] = accepted.answers
    assert (reported(answer), answer.is_traceable) == ([report], False)
    assert (answer.bridge, answer.reply_address) == (BRIDGE, ADDRESS)
    assert (answer.source_key, answer.message_id) == (b"\x0e" * 32, b"status message")
    assert (accepted.claims, accepted.waiting, accepted.stored) == ([], [], set())
    [row] = RefusedRequest.objects.all()
    assert [each.error for each in unpack(row.decided)] == [report[1]]
    for model in (NotificationRequest, Notification, RequestDigest, DecidedAtOnce):
        assert not model.objects.exists()


def test_a_request_with_one_push_that_is_delivered_or_hidden_is_kept_whole():
    make_recipient(ALICE)
    make_recipient(BOB, enabled=False)
    batch = [
        incoming(push(NOBODY), push(to), amm=bytes([number]) * 32, message_id=b"%d" % number)
        for number, to in enumerate((ALICE, BOB))
    ]
    assert accept(batch, now=NOW).stored == {b"\x0e" * 32}
    assert (NotificationRequest.objects.count(), RequestDigest.objects.count()) == (2, 2)
    assert not RefusedRequest.objects.exists()


def test_a_worker_answers_for_another_one_with_all_reports_and_clears_the_names():
    make_recipient(ALICE)
    accepted = accept([incoming(push(NOBODY, installation_id="\u00fc"), push(), push(NOBODY))], now=NOW)
    request = NotificationRequest.objects.get()
    assert NOBODY in bytes(request.names)
    [answer] = settled(accepted)
    assert reported(answer) == [NOT_REGISTERED, SUCCESS, NOT_REGISTERED]
    assert [report.installation_id for report in answer.reports] == ["\u00fc", UUID, UUID]
    request.refresh_from_db()
    assert (request.names, len(request.decided)) == (None, 6)


def test_a_hundred_refused_notifications_leave_one_row_of_two_bytes_each():
    """An envelope of 0.9 KB may hold a hundred. Each used to be a row with five indexes, kept for thirty days."""
    refused = [push(b"k", installation_id=str(number), type=200 + number) for number in range(100)]
    [answer] = accept([incoming(*refused)], now=NOW).answers
    assert [report.installation_id for report in answer.reports] == [str(number) for number in range(100)]
    assert Notification.objects.count() == 0
    [request] = RefusedRequest.objects.all()
    assert len(request.decided) == 200
    assert [d.type for d in unpack(request.decided)] == [*range(200, 256), *[0] * 44]


def test_type_zero_gets_no_report_and_no_push():
    make_recipient()
    [answer] = accept([incoming(push(type=0), push(NOBODY), push(type=0))], now=NOW).answers
    assert reported(answer) == [NOT_REGISTERED]
    [refused] = RefusedRequest.objects.all()
    assert [(one.position, one.verdict) for one in unpack(refused.decided)] == [(1, Verdict.NOT_REGISTERED)]


def test_a_request_for_nobody_is_answered_with_an_empty_list_and_an_empty_batch_with_nothing():
    [answer] = accept([incoming()], now=NOW).answers
    assert answer.reports == ()
    accepted = accept([], now=NOW)
    assert (accepted.answers, accepted.waiting, accepted.claims) == ([], [], [])


# Repeats --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [timedelta(), timedelta(hours=71), -DAY])
def test_a_repeat_is_answered_as_before_even_when_the_recipient_has_changed_meanwhile(later):
    """With the time before, the clock was set back."""
    make_recipient(BOB)
    pushes = push(), push(type=0), push(BOB, access_token="x"), push(NOBODY)
    [first] = accept([incoming(*pushes)], now=NOW).answers
    make_recipient()
    list(retention.purge(now=NOW + later, keep=30 * DAY))
    repeated = accept([incoming(*pushes, envelope=b"\x0f" * 32)], now=NOW + later)
    [again] = repeated.answers
    assert reported(first) == reported(again) == [NOT_REGISTERED, WRONG_TOKEN, NOT_REGISTERED]
    assert (repeated.claims, repeated.waiting, Notification.objects.count()) == ([], [], 0)


def test_two_bridges_may_use_the_same_request_key():
    make_recipient()
    accept([incoming(push())], now=NOW)
    elsewhere = accept([incoming(push())], now=NOW, bridge="another-bridge")
    assert NotificationRequest.objects.count() == 2
    assert [reported(answer) for answer in settled(elsewhere)] == [[SUCCESS]]
    assert decided() == [(0, Verdict.DUPLICATE, 1)]


@pytest.mark.parametrize("state", [State.DEAD_TOKEN, State.WITHDRAWN, State.UNDELIVERABLE, State.EXPIRED])
def test_a_push_that_reached_nobody_is_sent_when_its_request_is_repeated(state):
    """A sender that received the error of a dead token repeats the message after the phone has registered again."""
    make_recipient()
    accept([incoming(push())], now=NOW)
    end_open(state, at=NOW)
    again = accept([incoming(push(), amm=b"\x02" * 32, envelope=b"\x0f" * 32)], now=NOW)
    assert len(again.claims) == 1
    once_more = accept([incoming(push(), amm=b"\x03" * 32, envelope=b"\x10" * 32)], now=NOW)
    assert (once_more.claims, Notification.objects.count()) == ([], 2)  # the second notification is on its way


def test_a_push_that_may_have_reached_the_phone_is_not_sent_again():
    make_recipient()
    [claim] = accept([incoming(push())], now=NOW).claims
    end_open(State.EXPIRED, at=NOW)
    make_attempt(Notification.objects.get(pk=claim.notification_id), started_at=NOW, outcome=Outcome.AMBIGUOUS)
    again = accept([incoming(push(), amm=b"\x02" * 32, envelope=b"\x0f" * 32)], now=NOW)
    assert (again.claims, Notification.objects.count()) == ([], 1)


def test_a_request_that_comes_twice_in_one_batch_is_stored_once():
    make_recipient()
    twice = [incoming(push()), incoming(push(), envelope=b"\x0f" * 32)]
    accepted = accept(twice, now=NOW)
    assert len(accepted.claims) == NotificationRequest.objects.count() == 1
    repeated = accept([incoming(push(), envelope=b"\x10" * 32)], now=NOW)  # before the answer
    assert (repeated.answers, repeated.claims, repeated.waiting) == ([], [], [])
    assert len(settled(accepted)) == 1


@pytest.mark.parametrize("together", ["in one request", "in one batch", "in two batches"])
def test_the_same_push_twice_is_delivered_once_and_reported_as_success(together):
    make_recipient()
    both = [incoming(push()), incoming(push(), amm=b"\x02" * 32)]
    batches = {
        "in one request": [[incoming(push(), push())]],
        "in one batch": [both],
        "in two batches": [[each] for each in both],
    }
    accepted = [accept(batch, now=NOW) for batch in batches[together]]
    assert sum(len(each.claims) for each in accepted) == Notification.objects.count() == 1
    assert [verdict for _, verdict, _ in decided()] == [Verdict.DUPLICATE]
    reports = [report for each in accepted for answer in settled(each) for report in reported(answer)]
    assert reports == [SUCCESS, SUCCESS]


def test_a_push_with_the_wrong_token_does_not_take_the_place_of_the_right_one():
    make_recipient()
    accept([incoming(push(access_token="guessed"))], now=NOW)
    assert len(accept([incoming(push(), amm=b"\x02" * 32)], now=NOW).claims) == 1


def test_parts_of_a_dedup_key_cannot_be_shifted_into_each_other():
    assert dedup_key(b"ab", push(b"c")) != dedup_key(b"a", push(b"bc"))
    assert dedup_key(b"a", push(b"b", installation_id="cd")) != dedup_key(b"a", push(b"bc", installation_id="d"))


# The database ---------------------------------------------------------------------------------------------------------


def test_accepts_200_requests_with_as_many_statements_as_one(monkeypatch):
    hashes = [number.to_bytes(2) * 32 for number in range(50)]
    for public_key_hash in hashes:
        make_recipient(public_key_hash)
    own_admission().refresh()
    monkeypatch.setattr("notifications.queues.capacity.READ_EVERY_SECONDS", 3600)
    with statements() as one:
        accept([incoming(push(hashes[0]))], now=NOW)
    assert len(one) <= 6
    batch = [incoming(push(h), amm=bytes([n]) * 32) for n, h in enumerate(hashes[1:], start=2)]
    with statements() as many:
        assert len(accept(batch, now=NOW).claims) == 49
    assert many == one


def test_the_first_of_two_copies_of_a_request_in_a_batch_is_answered():
    """Somebody may publish a copy on another topic, where the sender would not receive the answer."""
    copy = replace(incoming(push(NOBODY)), source_key=b"\x0f" * 32, reply_address=b"elsewhere")
    [answer] = accept([incoming(push(NOBODY)), copy], now=NOW).answers
    assert answer.reply_address == ADDRESS


@pytest.mark.django_db(transaction=True)
def test_a_request_for_a_locked_route_is_accepted_as_usual():
    """Keys are rotated while the server runs, a few hundred routes at a time."""
    route = make_recipient().route
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("SELECT FROM registrations_route WHERE id = %s FOR UPDATE", [route.pk])
        accepted = accept([incoming(push())], now=NOW)
    assert [claim.route_id for claim in accepted.claims] == [route.pk]


# Withdrawing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_a_waiting_notification_is_withdrawn_with_its_payload_and_no_other(state):
    row = make_notification(route=make_route(), state=state, chat_id=b"c", message=b"m")
    others = {make_notification(route=make_route()), make_notification()}
    for routes in ([], [row.route_id]):
        withdraw(routes, now=NOW)
    row.refresh_from_db()
    assert others <= set(Notification.objects.filter(state=State.PENDING))
    if state in {State.PENDING, State.RETRYING, State.AMBIGUOUS}:
        assert (row.state, row.chat_id, row.message, row.due_at) == (State.WITHDRAWN, None, None, None)
        assert row.finished_at == NOW
    else:
        assert (row.state, row.message) == (state, None if state.is_terminal else b"m")


def test_the_end_of_a_route_reads_and_writes_no_ended_notification():
    """Devices of XMPP have no key: an index by key would find the pushes of all these devices."""
    route = make_route()
    over = make_notification(public_key_hash=b"", route=route, state=State.DELIVERED, dedup_key=None)
    same = {field.attname: getattr(over, field.attname) for field in EndedNotification._meta.fields[1:]}
    EndedNotification.objects.bulk_create(EndedNotification(**same) for _ in range(2000))
    waiting = make_notification(public_key_hash=b"", route=route)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE notifications_endednotification, notifications_opennotification")
    rows_read = """
        SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables
        WHERE relname ~ '^notifications_(open|ended)notification'
    """
    [(before,)] = fetch(rows_read)
    withdraw([route.pk], now=NOW)
    route.delete()
    [(after,)] = fetch(rows_read)
    assert after - before < 20
    assert set(Notification.objects.values_list("state", "route_id", "finished_at")) == {
        (State.DELIVERED, waiting.route_id, None),
        (State.WITHDRAWN, waiting.route_id, NOW),
    }
    assert not Route.objects.exists()


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("SN6")
def test_every_verdict_has_its_consequence():
    assert {verdict for verdict in Verdict if verdict.error is None} == {Verdict.DELIVER}
    assert set(CODES) == set(Verdict) - {Verdict.DELIVER}
    assert set(REASON_CODES) == {*Wish, *PushLimit}
    codes = [*CODES.values(), *REASON_CODES.values()]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 256 for code in codes)


def test_every_report_has_its_wire_code():
    assert set(REPORT_ERRORS) == set(Notification.Reports)
    assert set(REPORT_ERRORS.values()) == set(ReportError)
