"""Claiming, sending, recording and settling, with a gateway that answers as it is told."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection, transaction

from notifications import delivery
from notifications.delivery import BATCH_SIZE, FINISHED_BY, hand_out_due, record, settle, split_by_lane, take_up_lost
from notifications.messages import ChannelKey, Outcome, ReportError, Result
from notifications.models import Attempt, Notification, NotificationRequest
from registrations.encryption import Keyring, Purpose
from registrations.models import Registration, RegistrationEvent, Route
from tests.delivering import (
    APP,
    LEASE,
    LONG_AGO,
    NOW,
    RecordingGateway,
    answered,
    claimed,
    fresh,
    make_due,
    make_due_to_app,
    prove,
    send,
)
from tests.factories import make_notification, make_registration, make_request, make_route

State = Notification.State


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.DELIVERED, State.DELIVERED),
        (Outcome.DEAD, State.DEAD_TOKEN),
        (Outcome.PAYLOAD, State.UNDELIVERABLE),
        (Outcome.TRANSIENT, State.RETRYING),
        (Outcome.CONFIG, State.RETRYING),
        (Outcome.AMBIGUOUS, State.AMBIGUOUS),
    ],
)
def test_what_the_gateway_says_decides_the_state(outcome, state):
    notification = make_due(message=b"")
    assert send(notification, gateway=RecordingGateway(outcome)) == {notification.request_id}
    row, attempt = fresh(notification), Attempt.objects.get()
    assert (row.state, row.attempt_count, row.lease_until) == (state, 1, None)
    assert (attempt.number, attempt.gateway, attempt.outcome) == (1, "recording", outcome)
    assert (attempt.code, attempt.latency_ms) == ("code", 7)
    is_over = State(row.state).is_terminal
    assert (row.chat_id is None, row.message is None, row.finished_at is not None) == (is_over,) * 3
    assert (row.next_attempt_at is None) == is_over


@pytest.mark.django_db
def test_tells_the_gateway_everything_about_the_push():
    route = make_route(device_token="device-token", token_type=1, apn_topic="im.status")
    registration = make_registration(route=route)
    notification = make_due(route=route, public_key_hash=bytes(registration.public_key_hash), type=2)
    gateway = RecordingGateway()
    send(notification, gateway=gateway)
    [push] = gateway.pushes
    assert (push.notification_id, push.attempt_number, push.type) == (notification.pk, 1, 2)
    assert (push.token_type, push.device_token, push.apn_topic) == (1, "device-token", "im.status")
    assert (push.public_key_hash, push.chat_id, push.message) == (bytes(registration.public_key_hash), b"c", b"m")
    assert "device-token" not in repr(push)


@pytest.mark.django_db
def test_the_attempt_is_written_before_the_gateway_is_called():
    notification = make_due()
    [held] = claimed(notification)
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.latency_ms, attempt.started_at) == (None, None, NOW)
    assert fresh(notification).state == State.IN_FLIGHT
    record([(held, Result(Outcome.TRANSIENT, "unreachable", latency_ms=3))], now=NOW)
    attempt.refresh_from_db()
    assert (attempt.outcome, attempt.code, attempt.latency_ms, attempt.started_at) == (
        "transient",
        "unreachable",
        3,
        NOW,
    )


@pytest.mark.django_db
def test_delivering_the_same_ids_again_sends_nothing():
    notification = make_due()
    gateway = RecordingGateway()
    send(notification, gateway=gateway)
    assert send(notification, gateway=gateway) == set()
    assert len(gateway.pushes) == 1


@pytest.mark.django_db
def test_every_attempt_carries_the_same_collapse_id():
    notification = make_due()
    gateway = RecordingGateway(Outcome.TRANSIENT)
    for _ in range(2):
        send(notification, gateway=gateway)
        Notification.objects.update(next_attempt_at=LONG_AGO)
    first, second = gateway.pushes
    assert first.collapse_id == second.collapse_id
    assert (first.attempt_number, second.attempt_number) == (1, 2)
    assert 0 < len(first.collapse_id) <= 64


@pytest.mark.django_db
def test_a_first_attempt_does_not_wait_for_a_clock_that_is_behind():
    pending = make_due(next_attempt_at=NOW + timedelta(seconds=1))
    retrying = make_due(state=State.RETRYING, next_attempt_at=NOW + timedelta(seconds=1))
    assert [held.notification_id for held in claimed(pending, retrying)] == [pending.pk]


@pytest.mark.django_db(transaction=True)
def test_two_workers_never_claim_the_same_notification():
    notifications = [make_due(route=make_registration().route) for _ in range(20)]
    taken, start = [], threading.Barrier(2, timeout=10)

    def work():
        start.wait()
        taken.append({held.notification_id for held in claimed(*notifications)})
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert taken[0] & taken[1] == set()
    assert Attempt.objects.count() == len(taken[0] | taken[1])


@pytest.mark.django_db
def test_a_gateway_that_raises_leaves_an_ambiguous_attempt_and_does_not_stop_the_others():
    def answer(push):
        if push.notification_id == broken.pk:
            raise RuntimeError("a fault of ours, with a device token in it")
        return Result(Outcome.DELIVERED)

    broken, other = make_due(), make_due()
    send(broken, other, gateway=RecordingGateway(answer))
    assert (fresh(broken).state, fresh(other).state) == (State.AMBIGUOUS, State.DELIVERED)
    assert Attempt.objects.get(notification=broken).code == "gateway_failed"


@pytest.mark.django_db
def test_a_gateway_that_hangs_is_given_up_before_the_lease_ends():
    class Hanging(RecordingGateway):
        async def send(self, _push):
            await asyncio.sleep(60)

    notification = make_due()
    send(notification, gateway=Hanging(), lease=timedelta(seconds=0.3), patience=timedelta(seconds=30))
    assert fresh(notification).state == State.AMBIGUOUS
    assert Attempt.objects.get().code == "timeout"


@pytest.mark.django_db(transaction=True)
def test_a_result_is_recorded_again_when_the_database_refused_it_the_first_time():
    """Here for a lock; a restart or a deadlock is told by the same exception."""
    notification, locked = make_due(), threading.Event()

    def hold_the_row():
        with transaction.atomic():
            Notification.objects.select_for_update().get()
            locked.set()
            threading.Event().wait(0.5)
        connection.close()

    def answer(_push):
        threading.Thread(target=hold_the_row).start()
        assert locked.wait(10)
        return Result(Outcome.DELIVERED)

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    send(notification, gateway=RecordingGateway(answer))
    connection.close()  # and with it the setting
    assert fresh(notification).state == State.DELIVERED


@pytest.mark.django_db
def test_a_token_that_does_not_decrypt_waits_for_the_operator_and_stops_nobody_else():
    sealed = Keyring([b"\x77" * 32]).encrypt(Purpose.DEVICE_TOKEN, b"lost")
    lost, other = make_due(route=make_route(device_token="x")), make_due()
    Route.objects.filter(pk=lost.route_id).update(device_token_encrypted=sealed)
    send(lost, other)
    assert fresh(other).state == State.DELIVERED
    row = fresh(lost)
    assert (row.state, row.attempt_count, bytes(row.message)) == (State.RETRYING, 0, b"m")
    assert claimed(lost, now=row.next_attempt_at - timedelta(seconds=1)) == []


# Routes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_dead_token_disables_its_route_and_is_told_to_the_churn_report():
    registration = make_registration(route=make_route(token_type=1, apn_topic="im.status"))
    send(make_due(route=registration.route), gateway=RecordingGateway(Outcome.DEAD))
    route = Route.objects.get()
    assert (route.state, route.disabled_reason) == (Route.State.DISABLED, "code")
    event = RegistrationEvent.objects.get()
    assert (event.kind, event.pseudonym) == (RegistrationEvent.Kind.TOKEN_DIED, registration.pseudonym)
    assert (event.token_type, event.apn_topic) == (1, "im.status")


@pytest.mark.django_db
def test_a_dead_token_does_not_disable_the_one_registered_meanwhile():
    notification = make_due()
    [held] = claimed(notification)
    Route.objects.update(generation=2)
    record([(held, Result(Outcome.DEAD, "unregistered"))], now=NOW)
    assert Route.objects.get().state == Route.State.ACTIVE
    assert not RegistrationEvent.objects.exists()
    assert fresh(notification).state == State.DEAD_TOKEN


@pytest.mark.django_db
def test_a_token_dies_once_however_many_pushes_find_it_dead():
    route = make_registration().route
    send(make_due(route=route), make_due(route=route), gateway=RecordingGateway(Outcome.DEAD))
    assert RegistrationEvent.objects.count() == 1


@pytest.mark.django_db
def test_a_notification_whose_route_is_gone_or_dead_is_not_sent():
    dead = make_due(route=make_route(state=Route.State.DISABLED))
    gone = make_notification(at=LONG_AGO, expires_at=datetime(2100, 1, 1, tzinfo=UTC), message=b"m")
    gateway = RecordingGateway()
    send(dead, gone, gateway=gateway)
    assert gateway.pushes == []
    assert (fresh(dead).state, fresh(gone).state) == (State.DEAD_TOKEN, State.WITHDRAWN)
    assert (fresh(dead).message, fresh(gone).message) == (None, None)


# Trying again ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("result", "earliest", "latest"),
    [
        (Result(Outcome.TRANSIENT), 0, 2),
        (Result(Outcome.TRANSIENT, retry_after_seconds=300), 300, 300),
        (Result(Outcome.CONFIG), 0, 60),
        (Result(Outcome.AMBIGUOUS), 0, 2),
        (Result(Outcome.TRANSIENT, retry_base_seconds=60, retry_after_seconds=3), 3, 60),
    ],
)
def test_the_first_retry_comes_in_its_time(result, earliest, latest):
    notification = make_due()
    [held] = claimed(notification)
    record([(held, result)], now=NOW)
    wait = (fresh(notification).next_attempt_at - NOW).total_seconds()
    assert earliest <= wait <= latest
    assert fresh(notification).enqueued_at is None


@pytest.mark.django_db
def test_a_retry_that_would_come_after_the_time_to_live_expires_the_notification():
    notification = make_due(expires_at=NOW + timedelta(seconds=299))
    [held] = claimed(notification)
    record([(held, Result(Outcome.TRANSIENT, retry_after_seconds=300))], now=NOW)
    assert (fresh(notification).state, fresh(notification).message) == (State.EXPIRED, None)


@pytest.mark.django_db
def test_a_notification_past_its_time_to_live_is_not_sent():
    notification = make_due(expires_at=NOW)
    assert claimed(notification, now=NOW) == []
    assert fresh(notification).state == State.EXPIRED
    assert not Attempt.objects.exists()


@pytest.mark.django_db
def test_what_may_have_arrived_is_tried_once_more_and_then_left():
    notification = make_due()
    gateway = RecordingGateway(Outcome.AMBIGUOUS)
    for expected in (State.AMBIGUOUS, State.UNCONFIRMED):
        send(notification, gateway=gateway)
        assert fresh(notification).state == expected
        Notification.objects.update(next_attempt_at=LONG_AGO)
    send(notification, gateway=gateway)
    assert len(gateway.pushes) == 2
    assert fresh(notification).message is None


@pytest.mark.django_db
def test_failures_between_do_not_buy_an_ambiguous_push_more_attempts():
    notification = make_due()
    answers = iter([Outcome.AMBIGUOUS, Outcome.TRANSIENT, Outcome.AMBIGUOUS])
    gateway = RecordingGateway(lambda _: Result(next(answers)))
    for _ in range(3):
        Notification.objects.update(next_attempt_at=LONG_AGO)
        send(notification, gateway=gateway)
    assert fresh(notification).state == State.UNCONFIRMED


@pytest.mark.django_db
def test_what_is_too_large_is_tried_once_more_without_its_ciphertext():
    notification = make_due()
    gateway = RecordingGateway(Outcome.PAYLOAD)
    send(notification, gateway=gateway)
    row = fresh(notification)
    assert (row.state, row.payload_dropped, row.message, bytes(row.chat_id)) == (State.RETRYING, True, None, b"c")
    send(notification, gateway=gateway)
    assert [push.message for push in gateway.pushes] == [b"m", b""]
    assert fresh(notification).state == State.UNDELIVERABLE


@pytest.mark.django_db
def test_a_late_payload_error_does_not_touch_the_attempt_that_is_under_way():
    notification = make_due()
    [lost] = claimed(notification)
    take_up_lost(now=NOW + LEASE)
    [_current] = claimed(notification, now=NOW + LEASE)
    record([(lost, Result(Outcome.PAYLOAD))], now=NOW + LEASE)
    assert (fresh(notification).state, bytes(fresh(notification).message)) == (State.IN_FLIGHT, b"m")


@pytest.mark.django_db
def test_what_gorush_would_drop_without_a_word_is_not_even_sent():
    gateway = RecordingGateway()
    notification = make_due(route=make_registration(route=make_route(token_type=3)).route)
    send(notification, gateway=gateway)
    assert (gateway.pushes, fresh(notification).state) == ([], State.UNDELIVERABLE)
    assert (Attempt.objects.get().outcome, Attempt.objects.get().code) == ("payload", "unknown_platform")


@pytest.mark.django_db
def test_tasks_hold_notifications_of_one_channel_each():
    apple, other_app = [make_due_to_app() for _ in range(2)], make_due_to_app("im.status.pr")
    google = [make_due(route=make_registration(route=make_route(apn_topic=topic)).route) for topic in ("", "x")]
    prove(ChannelKey(1, APP), ChannelKey(1, "im.status.pr"), ChannelKey(2, ""))
    batches = list(split_by_lane([n.pk for n in (*apple, other_app, *google)]))
    assert sorted(batches) == sorted([[n.pk for n in apple], [other_app.pk], [n.pk for n in google]])


@pytest.mark.django_db
def test_made_up_apps_share_their_tasks():
    prove(ChannelKey(1, APP))
    strangers, app = [make_due_to_app(f"made.up.{number}").pk for number in range(3)], make_due_to_app().pk
    assert sorted(split_by_lane([*strangers, app])) == [strangers, [app]]


@pytest.mark.django_db
def test_a_task_holds_no_more_than_a_batch():
    route = make_registration().route
    ids = [make_due(route=route).pk for _ in range(BATCH_SIZE + 1)]
    assert list(split_by_lane(ids)) == [ids[:BATCH_SIZE], ids[BATCH_SIZE:]]


@pytest.mark.django_db
def test_hands_out_what_is_due_and_not_in_the_queue():
    patience = timedelta(seconds=30)
    retry = make_due(state=State.RETRYING, enqueued_at=None, next_attempt_at=NOW)
    lost = make_due(enqueued_at=NOW - patience)
    make_due(enqueued_at=NOW - patience + timedelta(seconds=1))
    make_due(state=State.RETRYING, enqueued_at=None, next_attempt_at=NOW + timedelta(seconds=1))
    make_due(state=State.IN_FLIGHT, enqueued_at=None)
    make_due(state=State.DELIVERED, enqueued_at=None)
    assert set(hand_out_due(now=NOW, limit=10, patience=patience)) == {retry.pk, lost.pk}
    assert hand_out_due(now=NOW, limit=10, patience=patience) == []


@pytest.mark.django_db
def test_hands_out_no_more_than_it_may_and_the_oldest_first():
    _later = make_due(state=State.RETRYING, next_attempt_at=NOW)
    sooner = make_due(state=State.RETRYING, next_attempt_at=NOW - timedelta(hours=1))
    assert hand_out_due(now=NOW, limit=1, patience=LEASE) == [sooner.pk]


# Lost workers ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_channel_with_much_to_do_leaves_room_in_a_sweep_for_the_others():
    prove(ChannelKey(1, APP), ChannelKey(1, "another.app"), ChannelKey(2, ""))
    busy = [make_due_to_app().pk for _ in range(12)]
    others = [make_due_to_app("another.app").pk, make_due().pk]
    handed_out = hand_out_due(now=NOW, limit=8, patience=LEASE)
    assert set(others) < set(handed_out)
    assert len(handed_out) == 8
    assert set(hand_out_due(now=NOW, limit=8, patience=LEASE)) | set(handed_out) == {*busy, *others}


@pytest.mark.django_db
def test_made_up_apps_together_have_one_share_of_a_sweep():
    prove(ChannelKey(1, APP), ChannelKey(2, ""))
    for number in range(12):
        make_due_to_app(f"made.up.{number}")
    others = {make_due_to_app().pk, make_due().pk}
    assert others < set(hand_out_due(now=NOW, limit=8, patience=LEASE))


@pytest.mark.django_db
def test_a_channel_that_is_alone_has_a_sweep_for_itself():
    due = [make_due().pk for _ in range(9)]
    assert len(hand_out_due(now=NOW, limit=8, patience=LEASE)) == 8
    assert hand_out_due(now=NOW, limit=8, patience=LEASE) == [due[-1]]


@pytest.mark.django_db
def test_what_a_killed_worker_held_is_ambiguous():
    notification = make_due()
    claimed(notification)
    assert take_up_lost(now=NOW + LEASE - timedelta(seconds=1)) == 0
    assert take_up_lost(now=NOW + LEASE) == 1
    row, attempt = fresh(notification), Attempt.objects.get()
    assert (row.state, row.ambiguous_count, row.lease_until) == (State.AMBIGUOUS, 1, None)
    assert (attempt.outcome, attempt.code) == ("ambiguous", "worker_lost")
    assert hand_out_due(now=NOW + LEASE, limit=10, patience=LEASE) == [notification.pk]


KILLED = "killed"
UNCERTAIN, BROKEN, STOPPED, LOST, LATER = (
    Result(Outcome.AMBIGUOUS, "timeout"),
    Result(Outcome.AMBIGUOUS, "cut_off"),
    Result(Outcome.AMBIGUOUS, "cancelled"),
    Result(Outcome.AMBIGUOUS, "connection_lost"),
    Result(Outcome.TRANSIENT, "unreachable"),
)


def gone_through(notification, *ends):
    """Try it once for each of these ends, a worker killed in the middle or a result."""
    for number, end in enumerate(ends):
        Notification.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=LONG_AGO)
        now = NOW + number * 2 * LEASE
        if end == KILLED:
            claimed(notification, now=now)
            take_up_lost(now=now + LEASE)
        else:
            answered(end, notification, now=now)
    return fresh(notification)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ([UNCERTAIN], State.AMBIGUOUS),
        ([UNCERTAIN, UNCERTAIN], State.UNCONFIRMED),
        ([UNCERTAIN, LATER, UNCERTAIN], State.UNCONFIRMED),
        ([KILLED, KILLED], State.AMBIGUOUS),
        ([BROKEN, STOPPED], State.AMBIGUOUS),
        ([LOST, LOST], State.AMBIGUOUS),
        ([UNCERTAIN, KILLED], State.AMBIGUOUS),
        ([UNCERTAIN, BROKEN], State.AMBIGUOUS),
        ([KILLED, UNCERTAIN], State.AMBIGUOUS),
        ([KILLED, UNCERTAIN, UNCERTAIN], State.UNCONFIRMED),
        ([UNCERTAIN, KILLED, BROKEN, UNCERTAIN], State.UNCONFIRMED),
        ([KILLED, BROKEN, STOPPED, KILLED], State.AMBIGUOUS),
        ([KILLED, BROKEN, STOPPED, KILLED, BROKEN], State.UNCONFIRMED),
        ([LOST, BROKEN, LOST, BROKEN, KILLED], State.UNCONFIRMED),
    ],
)
def test_one_more_attempt_is_one_that_nothing_interrupted(ends, state):
    """And a push that kills whoever sends it is left alone in the end."""
    row = gone_through(make_due(), *ends)
    assert (row.state, row.message is None) == (state, state == State.UNCONFIRMED)
    assert row.attempt_count == len(ends)


@pytest.mark.django_db
def test_interruptions_of_others_do_not_count():
    left, other = make_due(), make_due()
    gone_through(other, KILLED)
    assert gone_through(left, UNCERTAIN, UNCERTAIN).state == State.UNCONFIRMED


@pytest.mark.django_db
def test_a_late_success_counts_although_the_lease_was_lost():
    notification = make_due()
    [held] = claimed(notification)
    take_up_lost(now=NOW + LEASE)
    record([(held, Result(Outcome.DELIVERED))], now=NOW + LEASE)
    assert fresh(notification).state == State.DELIVERED
    assert claimed(notification, now=NOW + LEASE) == []
    assert Attempt.objects.get().outcome == "delivered"


@pytest.mark.django_db
@pytest.mark.parametrize("late", [Outcome.TRANSIENT, Outcome.CONFIG, Outcome.AMBIGUOUS])
def test_a_late_failure_does_not_touch_the_attempt_that_is_under_way(late):
    notification = make_due(expires_at=NOW + LEASE + timedelta(milliseconds=1))
    [lost] = claimed(notification)
    take_up_lost(now=NOW + LEASE)
    [current] = claimed(notification, now=NOW + LEASE)
    record([(lost, Result(late))], now=NOW + LEASE)
    assert (fresh(notification).state, fresh(notification).attempt_count) == (State.IN_FLIGHT, 2)
    record([(current, Result(Outcome.DELIVERED))], now=NOW + LEASE)
    assert fresh(notification).state == State.DELIVERED


@pytest.mark.django_db(transaction=True)
def test_batches_with_the_same_routes_never_wait_for_each_other():
    """Each succeeds where the other fails: written as they come, the routes would be locked crosswise."""
    raised, start = [], threading.Barrier(2, timeout=30)

    def work(batches):
        try:
            for batch in batches:
                start.wait()
                record(batch, now=NOW)
        except OperationalError as error:
            raised.append(error)
            start.abort()
        except threading.BrokenBarrierError:
            pass
        connection.close()

    threads = [threading.Thread(target=work, args=[batches]) for batches in zip(*crosswise(rounds=30), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert raised == []


def crosswise(*, rounds):
    """Two batches per round, about two routes that nothing was written about yet."""
    for _ in range(rounds):
        one, other = make_registration().route, make_registration().route
        first, second, third, fourth = claimed(*(make_due(route=route) for route in (one, other, other, one)))
        good, bad = Result(Outcome.DELIVERED), Result(Outcome.TRANSIENT)
        yield [(first, good), (second, bad)], [(third, good), (fourth, bad)]


@pytest.mark.django_db
def test_a_result_for_somebody_who_unregistered_meanwhile_changes_nothing_else():
    notification = make_due()
    [held] = claimed(notification)
    Registration.objects.update(route=None)
    Route.objects.all().delete()
    record([(held, Result(Outcome.TRANSIENT))], now=NOW)
    assert claimed(notification, now=NOW + timedelta(hours=1)) == []
    assert (fresh(notification).state, fresh(notification).message) == (State.WITHDRAWN, None)


# Settling -------------------------------------------------------------------------------------------------------------


def make_waiting(*states, **fields):
    """A request received now, with notifications in these states."""
    request = make_request(at=NOW, **fields)
    for position, state in enumerate(states):
        attempts = 1 if state == State.IN_FLIGHT else 0
        make_notification(request=request, position=position, at=NOW, state=state, attempt_count=attempts)
    return request


def told(answer):
    return [(report.success, report.error) for report in answer.reports]


SUCCESS, NOT_REGISTERED = (True, ReportError.NONE), (False, ReportError.NOT_REGISTERED)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "report"),
    [
        (State.DELIVERED, SUCCESS),
        (State.RETRYING, SUCCESS),
        (State.AMBIGUOUS, SUCCESS),
        (State.UNCONFIRMED, SUCCESS),
        (State.UNDELIVERABLE, SUCCESS),
        (State.EXPIRED, SUCCESS),
        (State.WITHDRAWN, SUCCESS),
        (State.DEAD_TOKEN, NOT_REGISTERED),
    ],
)
def test_answers_as_soon_as_every_notification_was_tried_once(state, report):
    request = make_waiting(state, State.DELIVERED)
    [answer] = settle([request.pk], now=NOW)
    assert told(answer) == [report, SUCCESS]
    assert answer.reply_to == bytes(request.reply_to)
    assert (answer.envelope_hash, answer.message_id) == (bytes(request.envelope_hash), bytes(request.message_id))
    row = fresh(request)
    assert (row.state, row.reply_to, row.answered_at) == (NotificationRequest.State.ANSWERED, None, NOW)


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.PENDING, State.IN_FLIGHT])
def test_waits_for_a_first_attempt_until_the_deadline(state):
    request = make_waiting(state, State.DEAD_TOKEN)
    assert settle([request.pk], now=request.reply_due_at - timedelta(microseconds=1)) == []
    [answer] = settle([request.pk], now=request.reply_due_at)
    assert told(answer) == [SUCCESS, NOT_REGISTERED]


@pytest.mark.django_db
def test_does_not_wait_for_a_second_attempt():
    request = make_waiting(State.IN_FLIGHT)
    Notification.objects.update(attempt_count=2)
    assert len(settle([request.pk], now=NOW)) == 1


@pytest.mark.django_db
def test_what_the_sender_was_told_stays():
    request = make_waiting(State.RETRYING)
    settle([request.pk], now=NOW)
    Notification.objects.update(state=State.DEAD_TOKEN)
    assert settle([request.pk], now=NOW) == []
    assert Notification.objects.get().report == Notification.Reports.SUCCESS


@pytest.mark.django_db(transaction=True)
def test_each_request_is_answered_once_when_two_workers_settle():
    requests = [make_waiting(State.DELIVERED) for _ in range(20)]
    answers, start = [], threading.Barrier(2, timeout=10)

    def work():
        start.wait()
        answers.extend(settle([request.pk for request in requests], now=NOW))
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    left = settle([request.pk for request in requests], now=NOW)
    assert len({answer.envelope_hash for answer in [*answers, *left]}) == len(answers) + len(left) == 20


@pytest.mark.django_db
def test_names_the_requests_whose_answer_is_late_oldest_first():
    late, later = make_waiting(State.PENDING), make_waiting(State.PENDING)
    NotificationRequest.objects.filter(pk=late.pk).update(reply_due_at=NOW - timedelta(seconds=5))
    make_waiting(State.PENDING, reply_due_at=NOW + timedelta(minutes=1))
    due = later.reply_due_at
    assert delivery.overdue_request_ids(now=due, limit=10) == [late.pk, later.pk]
    assert delivery.overdue_request_ids(now=due, limit=1) == [late.pk]


def test_every_outcome_either_ends_a_notification_or_schedules_another_attempt():
    assert set(Outcome) - set(FINISHED_BY) == {Outcome.TRANSIENT, Outcome.CONFIG, Outcome.AMBIGUOUS}
    assert all(state.is_terminal for state in FINISHED_BY.values())


def test_every_outcome_can_be_stored():
    assert {choice.value for choice in Attempt.Outcome} == {outcome.value for outcome in Outcome}
