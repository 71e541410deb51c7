"""Tests of claiming, sending, recording and settling, with a gateway whose answers the test sets."""

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import OperationalError, transaction

from kit.db.partitions import UNDER_WAY
from notifications.delivery import settling
from notifications.delivery.recording import FINISHED_BY
from notifications.gateways import gateway_for
from notifications.messages import AppKey, Outcome, QueueKey, ReportError, Result
from notifications.models import Attempt, Channel, Notification, NotificationRequest, OpenNotification, OpenRequest
from notifications.queues import queues
from notifications.queues.capacity import ConcurrencyLimits, Slot
from notifications.reports import MISSING
from registrations.encryption import Keyring, Purpose
from registrations.models import RegistrationEvent, Route
from tests.rig.delivering import (
    APP,
    LEASE,
    LONG_AGO,
    NOW,
    DeliveryProcess,
    RecordingGateway,
    claimed,
    expire,
    fresh,
    make_due,
    make_due_to_app,
    only,
    prove,
    record,
    send,
    settle,
    take,
)
from tests.rig.rows import (
    end_open,
    make_channel,
    make_halt,
    make_notification,
    make_registration,
    make_request,
    make_route,
)
from tests.rig.statements import at_once, other_session

State = Notification.State

pytestmark = pytest.mark.django_db


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
def test_the_result_of_the_gateway_decides_the_state(outcome, state):
    notification = make_due(message=b"")
    assert send(notification, gateway=RecordingGateway(outcome)) == {notification.request_id}
    row, attempt = fresh(notification), Attempt.objects.get()
    assert (row.state, row.attempt_count) == (state, 1)
    assert (attempt.number, attempt.gateway, attempt.outcome) == (1, "gorush", outcome)
    assert (attempt.code, attempt.latency_ms) == ("code", 7)
    is_over = State(row.state).is_terminal
    assert (row.chat_id is None, row.message is None, row.finished_at is not None) == (is_over,) * 3
    assert (row.due_at is None) == is_over
    assert row.ended_on == (row.finished_at.date() if is_over else UNDER_WAY)


def test_a_first_attempt_does_not_wait_for_a_clock_that_is_behind():
    pending = make_due(due_at=NOW + timedelta(seconds=1))
    retrying = make_due(state=State.RETRYING, due_at=NOW + timedelta(seconds=1))
    assert [held.notification_id for held in claimed(pending, retrying)] == [pending.pk]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_gateway_that_fails_leaves_an_ambiguous_attempt_and_does_not_stop_the_others(is_open):
    def answer(push):
        if push.notification_id == broken.pk:
            raise RuntimeError("a fault of ours, with a device token in it")
        return Result(Outcome.DELIVERED)

    def open_gateway(name):
        if name == "broken" and not is_open:
            raise RuntimeError("a fault of ours")
        return gateway

    gateway = RecordingGateway(answer)
    broken, other = make_due(route=make_registration(route=make_route(gateway="broken")).route), make_due()
    DeliveryProcess(gateways=open_gateway).process_backlog()
    assert (fresh(broken).state, fresh(other).state) == (State.AMBIGUOUS, State.DELIVERED)
    assert Attempt.objects.get(notification=broken).code == "gateway_failed"


def test_a_gateway_that_cannot_be_refreshed_gets_its_pushes_all_the_same():
    class Stale(RecordingGateway):
        def refresh(self, **_):
            raise RuntimeError("a fault of ours")

    notification = make_due()
    DeliveryProcess(Stale()).process_backlog()
    assert fresh(notification).state == State.DELIVERED


def test_a_gateway_that_hangs_is_given_up_before_the_lease_ends(settings):
    class Hanging(RecordingGateway):
        async def send(self, _push):
            await asyncio.sleep(60)

    notification, deliverer = make_due(), DeliveryProcess(Hanging())
    settings.DELIVERY_LEASE_SECONDS = 1
    deliverer.process_backlog(now=NOW)
    assert fresh(notification).state == State.AMBIGUOUS
    assert Attempt.objects.get().code == "timeout"


@pytest.mark.django_db(transaction=True)
def test_results_of_a_locked_row_are_recorded_later_and_stop_no_others(monkeypatch):
    monkeypatch.setattr("kit.batches.inflight.AGAIN_SECONDS", 0.5)
    rows, deliverer = [make_due() for _ in range(11)], DeliveryProcess()
    held, others = rows[:8], rows[8:]
    deliverer.process_batch()
    while len(deliverer.gateway.pushes) < len(rows) or not deliverer.delivery.are_all_done():
        deliverer.wait()
    with other_session() as session:
        session.execute(
            "SELECT FROM notifications_opennotification WHERE id = ANY (%s) FOR UPDATE", [[row.pk for row in held]]
        )
        monkeypatch.setattr("kit.batches.worker.LOCK_TIMEOUT", "20ms")
        deliverer.process_until(lambda: {fresh(row).state for row in others} == {State.DELIVERED})
        assert {fresh(row).state for row in held} == {State.IN_FLIGHT}
    deliverer.process_until(lambda: {fresh(row).state for row in rows} == {State.DELIVERED})
    assert (len(deliverer.gateway.pushes), deliverer.delivery.under_way) == (len(rows), 0)


def test_a_token_that_cannot_be_decrypted_waits_for_the_operator_and_stops_no_other():
    sealed = Keyring([b"\x77" * 32]).encrypt(Purpose.ADDRESS, b"lost")
    lost, other = make_due(route=make_route(device_token="x")), make_due()
    Route.objects.filter(pk=lost.route_id).update(address_encrypted=sealed)
    send(lost, other)
    assert fresh(other).state == State.DELIVERED
    row = fresh(lost)
    assert (row.state, row.attempt_count, bytes(row.message)) == (State.PENDING, 0, b"m")
    assert claimed(lost, now=row.due_at - timedelta(seconds=1)) == []


# Routes ---------------------------------------------------------------------------------------------------------------


def test_a_dead_token_disables_its_route_and_is_once_in_the_churn_report():
    """However many pushes find it dead."""
    registration = make_registration(route=make_route(token_type=1, app_topic="im.status"))
    send(*(make_due(route=registration.route) for _ in range(2)), gateway=RecordingGateway(Outcome.DEAD))
    route = Route.objects.get()
    assert (route.state, route.disabled_reason) == (Route.State.DISABLED, "code")
    event = RegistrationEvent.objects.get()
    assert (event.kind, event.pseudonym) == (RegistrationEvent.Kind.TOKEN_DIED, registration.pseudonym)
    assert (event.token_type, event.app_topic) == (1, "im.status")


def test_a_dead_token_does_not_disable_the_one_registered_meanwhile():
    """The notification goes to the new token: its sender may have received success."""
    notification = make_due()
    [held] = claimed(notification)
    Route.objects.update(generation=2)
    [recorded] = record([(held, Result(Outcome.DEAD, "unregistered"))], now=NOW)
    assert Route.objects.get().state == Route.State.ACTIVE
    assert not RegistrationEvent.objects.exists()
    assert (fresh(notification).state, recorded.is_token_dead) == (State.RETRYING, False)
    [again] = claimed(notification)
    assert (again.attempt_number, again.route_generation) == (2, 2)
    record([(again, Result(Outcome.DEAD, "unregistered"))], now=NOW)
    assert (fresh(notification).state, Route.objects.get().state) == (State.DEAD_TOKEN, Route.State.DISABLED)


def test_a_notification_whose_route_is_gone_or_dead_is_not_sent():
    dead = make_due(route=make_route(state=Route.State.DISABLED))
    gone = make_notification(at=LONG_AGO, expires_at=datetime(2100, 1, 1, tzinfo=UTC), message=b"m")
    gateway = RecordingGateway()
    send(dead, gone, gateway=gateway)
    assert gateway.pushes == []
    assert (fresh(dead).state, fresh(gone).state) == (State.DEAD_TOKEN, State.WITHDRAWN)
    assert (fresh(dead).message, fresh(gone).message) == (None, None)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_result_is_not_recorded_on_a_row_that_got_its_id_after_a_fail_over(outcome):
    """A standby that lacked the last rows gives their ids to others, while a worker has their results in memory."""
    notification = make_due()
    [held] = claimed(notification)
    OpenNotification.objects.update(collapse_id=bytes(16))
    Route.objects.update(address_digest=bytes(16))
    before = Notification.objects.values().get()
    record([(held, Result(outcome))], now=NOW)
    assert Notification.objects.values().get() == before
    assert Route.objects.get().state == Route.State.ACTIVE


# Trying again ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "earliest", "latest"),
    [
        (Result(Outcome.TRANSIENT), 0, 2),
        (Result(Outcome.TRANSIENT, retry_after_seconds=300), 300, 300),
        (Result(Outcome.CONFIG), 0, 60),
        (Result(Outcome.AMBIGUOUS), 10, 12),
        (Result(Outcome.AMBIGUOUS, retry_after_seconds=300), 300, 300),
        (Result(Outcome.TRANSIENT, retry_base_seconds=60, retry_after_seconds=3), 3, 60),
    ],
)
def test_the_first_retry_comes_in_its_time(result, earliest, latest):
    notification = make_due(route=make_registration(route=make_route(last_success_at=LONG_AGO)).route)
    [held] = claimed(notification)
    record([(held, result)], now=NOW)
    wait = (fresh(notification).due_at - NOW).total_seconds()
    assert earliest <= wait <= latest


@pytest.mark.parametrize(
    ("result", "end"),
    [
        (Result(Outcome.TRANSIENT, retry_after_seconds=300), State.EXPIRED),
        (Result(Outcome.CONFIG, retry_after_seconds=300), State.EXPIRED),
        (Result(Outcome.AMBIGUOUS, retry_after_seconds=300), State.UNCONFIRMED),
    ],
)
def test_a_push_ends_with_its_time_to_live_and_not_before(result, end):
    """The cause may be over before: then the push can still be sent."""
    notification = make_due(expires_at=NOW + timedelta(seconds=299))
    [held] = claimed(notification)
    record([(held, result)], now=NOW)
    assert expire(NOW + timedelta(seconds=298)) == 0
    assert expire(NOW + timedelta(seconds=299)) == 1
    assert (fresh(notification).state, fresh(notification).message) == (end, None)


@pytest.mark.parametrize(("ambiguous_count", "end"), [(0, State.EXPIRED), (1, State.UNCONFIRMED)])
def test_a_notification_past_its_time_to_live_is_not_sent(ambiguous_count, end):
    notification = make_due(expires_at=NOW, ambiguous_count=ambiguous_count, state=State.RETRYING)
    assert claimed(notification, now=NOW) == []
    assert fresh(notification).state == end
    assert not Attempt.objects.exists()


def test_a_certain_result_ends_an_ambiguous_push():
    notification = make_due()
    answers = iter([Outcome.AMBIGUOUS, Outcome.AMBIGUOUS, Outcome.DELIVERED])
    gateway = RecordingGateway(lambda _: Result(next(answers)))
    for _ in range(4):
        OpenNotification.objects.update(due_at=LONG_AGO)
        send(notification, gateway=gateway)
    assert (fresh(notification).state, len(gateway.pushes)) == (State.DELIVERED, 3)


def fail(notification, *, now, is_probe=False, gateway="gorush", code="TopicDisallowed", outcome=Outcome.CONFIG):
    """Deliver something through a gateway, and then fail to deliver this notification."""
    key = QueueKey(gateway, 1, None, is_proven=False)
    queues.create([key])
    queues.note_delivery([key], queues.load(), now=now)
    [held] = claimed(notification, now=now + timedelta(seconds=1))
    record([(replace(held, is_probe=is_probe), Result(outcome, code, is_guarded=True))], now=now + timedelta(seconds=2))
    OpenNotification.objects.filter(pk=notification.pk, state=State.RETRYING).update(due_at=LONG_AGO)
    return held


@pytest.mark.parametrize(
    ("case", "ambiguous_count", "counted", "state"),
    [
        ({}, 0, 8, State.UNDELIVERABLE),
        ({}, 1, 8, State.UNCONFIRMED),
        ({"is_probe": True}, 0, 0, State.RETRYING),
        ({"gateway": "another"}, 0, 0, State.RETRYING),
        ({"code": "provider_unreachable"}, 0, 0, State.RETRYING),
        ({"outcome": Outcome.DEAD}, 0, 8, State.UNDELIVERABLE),
    ],
)
def test_eight_failures_while_the_same_gateway_delivers_others_end_a_push(case, ambiguous_count, counted, state):
    """At an address that nothing was delivered to. Deaths that are not believed are failures, too."""
    make_channel(AppKey(1, APP), last_success_at=LONG_AGO, deaths_distrusted_since=LONG_AGO)
    notification = make_due_to_app(ambiguous_count=ambiguous_count)
    for minutes in range(8):
        assert fresh(notification).state in {State.PENDING, State.RETRYING}
        fail(notification, now=NOW + timedelta(minutes=minutes), **case)
    row = fresh(notification)
    assert (row.state, row.attempt_count, Attempt.objects.filter(is_counted=True).count()) == (state, 8, counted)
    assert state == State.RETRYING or row.message is None


def test_the_late_failure_of_an_attempt_that_was_lost_does_not_end_the_push():
    notification = make_due_to_app()
    for minutes in range(7):
        fail(notification, now=NOW + timedelta(minutes=minutes))
    [lost] = claimed(notification, now=NOW + timedelta(minutes=7))
    [current] = claimed(notification, now=NOW + timedelta(minutes=10))
    queues.note_delivery([QueueKey("gorush", 1, None, is_proven=False)], queues.load(), now=NOW + timedelta(minutes=10))
    record([(lost, Result(Outcome.CONFIG))], now=NOW + timedelta(minutes=11))
    assert fresh(notification).state == State.IN_FLIGHT
    record([(current, Result(Outcome.DELIVERED))], now=NOW + timedelta(minutes=12))
    assert fresh(notification).state == State.DELIVERED


def test_a_push_that_is_too_large_is_sent_once_more_without_its_ciphertext():
    notification = make_due()
    gateway = RecordingGateway(Outcome.PAYLOAD)
    send(notification, gateway=gateway)
    row = fresh(notification)
    assert (row.state, row.payload_dropped, row.message, bytes(row.chat_id)) == (State.RETRYING, True, None, b"c")
    send(notification, gateway=gateway)
    assert [push.message for push in gateway.pushes] == [b"m", b""]
    assert fresh(notification).state == State.UNDELIVERABLE


def test_the_pushes_of_a_removed_gateway_wait_for_it():
    notification = make_due(route=make_registration(route=make_route(gateway="gone")).route)
    with only([notification]):
        DeliveryProcess(gateways=gateway_for).process_backlog()
    attempt = Attempt.objects.get()
    assert (attempt.gateway, attempt.outcome, attempt.code) == ("gone", "config", "no_gateway")
    assert (fresh(notification).state, bytes(fresh(notification).message)) == (State.RETRYING, b"m")


# Claims ---------------------------------------------------------------------------------------------------------------


def test_claims_no_more_than_the_limit_and_the_oldest_first():
    _later = make_due(state=State.RETRYING, due_at=NOW)
    sooner = make_due(state=State.RETRYING, due_at=NOW - timedelta(hours=1))
    assert [held.notification_id for held in take(limit=1)] == [sooner.pk]


def test_made_up_apps_together_do_not_hide_what_waits_behind_them():
    prove(AppKey(1, APP), AppKey(2, ""))
    queues.create([QueueKey("gorush", 1, None, is_proven=False)])
    for number in range(12):
        make_due_to_app(f"made.up.{number}", due_at=LONG_AGO - timedelta(hours=1))
    others = {make_due_to_app().pk, make_due().pk}
    limits = ConcurrencyLimits(3)
    assert len(take(limit=8, limits=limits)) == 3
    assert {held.notification_id for held in take(limit=8, limits=limits)} == others
    assert take(limit=8, limits=limits) == []


def test_a_notification_without_an_active_route_is_closed_behind_full_queues_too():
    prove(AppKey(2, ""))
    limits = ConcurrencyLimits(1)
    limits.enter(Slot(queues.load().id_of(QueueKey("gorush", 2, "", is_proven=True))))
    gone = make_notification(at=LONG_AGO, expires_at=datetime(2100, 1, 1, tzinfo=UTC))
    assert take(limits=limits) == []
    assert fresh(gone).state == State.WITHDRAWN


@pytest.mark.django_db(transaction=True)
def test_results_do_not_wait_for_the_row_of_their_app():
    """Each result of the app would, for as long as another session keeps the row locked."""
    rows, deliverer = [make_due_to_app() for _ in range(5)], DeliveryProcess()
    prove(AppKey(1, APP))
    with other_session() as session:
        session.execute("SELECT FROM notifications_channel FOR UPDATE")
        deliverer.process_backlog()
    assert {fresh(row).state for row in rows} == {State.DELIVERED}
    assert Channel.objects.get().last_success_at == LONG_AGO
    send(make_due_to_app())
    assert Channel.objects.get().last_success_at > LONG_AGO


# Lost workers ---------------------------------------------------------------------------------------------------------


def test_the_pushes_of_a_killed_worker_are_ambiguous():
    notification = make_due()
    [lost] = claimed(notification)
    assert take(now=NOW + LEASE - timedelta(seconds=1)) == []
    [again] = take(now=NOW + LEASE)
    row, attempt = fresh(notification), Attempt.objects.exclude(outcome=None).get()
    assert (row.state, row.ambiguous_count, row.due_at) == (State.IN_FLIGHT, 1, NOW + 2 * LEASE)
    assert (attempt.pk, attempt.outcome, attempt.code) == (lost.attempt_id, "ambiguous", "worker_lost")
    assert (again.attempt_number, again.ambiguous_count, again.collapse_id) == (2, 1, lost.collapse_id)


def test_the_push_of_a_killed_worker_waits_behind_a_halt_and_is_closed_there_when_it_expires():
    prove(AppKey(1, APP))
    notification = make_due_to_app(expires_at=NOW + 2 * LEASE)
    claimed(notification)
    make_halt("paused", AppKey(1, APP))
    for seconds, state in ((0, State.IN_FLIGHT), (LEASE.total_seconds(), State.UNCONFIRMED)):
        now = NOW + LEASE + timedelta(seconds=seconds)
        expire(now)
        assert take(now=now) == []
        assert fresh(notification).state == state
    row = fresh(notification)
    assert (row.message, row.ambiguous_count, Attempt.objects.get().code) == (None, 1, "worker_lost")


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_stops_no_other_whether_it_is_due_or_left_by_a_killed_worker():
    locked, others = [make_due(), make_due()], [make_due(), make_due()]
    claimed(locked[0], others[0])  # long ago, by a worker that was killed
    deliverer = DeliveryProcess()
    with other_session() as session:
        session.execute(
            "SELECT FROM notifications_opennotification WHERE id = ANY (%s) FOR UPDATE", [[row.pk for row in locked]]
        )
        deliverer.process_until(lambda: {fresh(row).state for row in others} == {State.DELIVERED})
        assert [fresh(row).state for row in locked] == [State.IN_FLIGHT, State.PENDING]
    deliverer.process_until(lambda: {fresh(row).state for row in locked} == {State.DELIVERED})
    assert [fresh(row).ambiguous_count for row in [*locked, *others]] == [1, 0, 1, 0]


def test_a_late_success_counts_although_the_lease_was_lost():
    notification = make_due()
    [held] = claimed(notification)
    [again] = claimed(notification, now=NOW + LEASE)
    record([(held, Result(Outcome.DELIVERED))], now=NOW + LEASE)
    assert fresh(notification).state == State.DELIVERED
    assert Attempt.objects.get().outcome == "delivered"
    record([(again, Result(Outcome.TRANSIENT))], now=NOW + LEASE)
    assert fresh(notification).state == State.DELIVERED
    assert list(Attempt.objects.order_by("number").values_list("outcome", flat=True)) == ["delivered", "transient"]


def test_a_late_result_counts_while_nobody_has_noticed_that_the_lease_ended():
    notification = make_due()
    [held] = claimed(notification)
    record([(held, Result(Outcome.TRANSIENT))], now=NOW + 2 * LEASE)
    assert (fresh(notification).state, fresh(notification).ambiguous_count) == (State.RETRYING, 0)


@pytest.mark.parametrize("late", [Outcome.TRANSIENT, Outcome.CONFIG, Outcome.AMBIGUOUS, Outcome.PAYLOAD])
def test_a_late_failure_does_not_touch_the_attempt_that_is_under_way(late):
    notification = make_due(expires_at=NOW + LEASE + timedelta(milliseconds=1))
    [lost] = claimed(notification)
    [current] = claimed(notification, now=NOW + LEASE)
    record([(lost, Result(late))], now=NOW + LEASE)
    row = fresh(notification)
    assert (row.state, row.attempt_count, bytes(row.message)) == (State.IN_FLIGHT, 2, b"m")
    record([(current, Result(Outcome.DELIVERED))], now=NOW + LEASE)
    assert fresh(notification).state == State.DELIVERED


@pytest.mark.django_db(transaction=True)
def test_batches_with_the_same_routes_do_not_dead_lock():
    """Each succeeds where the other fails: written in order of arrival, the routes would be locked crosswise."""
    raised, start = [], threading.Barrier(2, timeout=30)
    good, bad, rounds = Result(Outcome.DELIVERED), Result(Outcome.TRANSIENT), []
    for _ in range(30):  # two batches about two routes that nothing was written about yet
        one, other = make_registration().route, make_registration().route
        first, second, third, fourth = claimed(*(make_due(route=route) for route in (one, other, other, one)))
        rounds.append(([(first, good), (second, bad)], [(third, good), (fourth, bad)]))

    def work(batches):
        try:
            for batch in batches:
                start.wait()
                with transaction.atomic():
                    record(batch, now=NOW)
        except OperationalError as error:
            raised.append(error)
            start.abort()
        except threading.BrokenBarrierError:
            pass

    at_once(*(partial(work, batches) for batches in zip(*rounds, strict=True)))
    assert raised == []


# Settling -------------------------------------------------------------------------------------------------------------


def make_waiting(*states, **fields):
    """Create a request received now, with notifications in these states."""
    request = make_request(at=NOW, **fields)
    for position, state in enumerate(states):
        attempts = 1 if state == State.IN_FLIGHT else 0
        make_notification(request=request, position=position, at=NOW, state=state, attempt_count=attempts)
    return request


def reported(answer):
    return [(report.success, report.error) for report in answer.reports]


SUCCESS, NOT_REGISTERED = (True, ReportError.NONE), (False, ReportError.NOT_REGISTERED)


@pytest.mark.parametrize(
    ("outcome", "report"), [(o, NOT_REGISTERED if o is Outcome.DEAD else SUCCESS) for o in Outcome]
)
def test_answers_as_soon_as_every_notification_was_tried_once(outcome, report):
    request = make_request(at=NOW)
    for position in range(2):
        make_due(request=request, position=position, at=NOW)
    first, last = [(claim, Result(outcome)) for claim in take()]
    assert answered(first) == []
    assert answered(first) == []  # nobody knows whether it was committed
    [answer] = answered(last)
    assert reported(answer) == [report, report]
    assert (answer.bridge, answer.reply_address) == ("waku", bytes(request.reply_address))
    assert (answer.source_key, answer.message_id) == (bytes(request.source_key), bytes(request.message_id))
    row = fresh(request)
    assert (row.state, row.reply_address, row.answered_at) == (NotificationRequest.State.ANSWERED, None, NOW)


def answered(*results):
    """Record results, and return the answers of requests that they complete."""
    locked = settling.lock(claim.request_id for claim, _ in results)
    noted = settling.note(locked, record(results), ())
    settling.keep(noted)
    return settle([request.id for request in noted])


def test_a_result_is_no_report_of_a_request_that_got_its_id_after_a_fail_over():
    make_due(request=make_request(at=NOW), at=NOW)
    [held] = take()
    assert answered((replace(held, created_at=NOW - timedelta(seconds=1)), Result(Outcome.DELIVERED))) == []
    assert bytes(OpenRequest.objects.get().reports) == bytes([MISSING])


@pytest.mark.parametrize(
    ("state", "report"), [(State.EXPIRED, SUCCESS), (State.WITHDRAWN, SUCCESS), (State.DEAD_TOKEN, NOT_REGISTERED)]
)
def test_what_ends_without_an_attempt_is_answered_at_the_deadline(state, report):
    request = make_waiting(State.PENDING)
    end_open(state, at=NOW)
    assert settle([request.pk], now=NOW) == []
    [answer] = settle([request.pk], now=request.reply_due_at)
    assert reported(answer) == [report]


@pytest.mark.parametrize("state", [State.PENDING, State.IN_FLIGHT])
def test_waits_for_a_first_attempt_until_the_deadline(state):
    request = make_waiting(state, State.DEAD_TOKEN)
    assert settle([request.pk], now=request.reply_due_at - timedelta(microseconds=1)) == []
    [answer] = settle([request.pk], now=request.reply_due_at)
    assert reported(answer) == [SUCCESS, NOT_REGISTERED]


@pytest.mark.parametrize(
    ("state", "report"),
    [
        (State.PENDING, NOT_REGISTERED),
        (State.RETRYING, NOT_REGISTERED),
        (State.AMBIGUOUS, NOT_REGISTERED),
        (State.IN_FLIGHT, SUCCESS),  # it may still arrive
        (State.DELIVERED, SUCCESS),  # it was delivered before
    ],
)
def test_a_notification_for_a_disabled_address_is_reported_as_dead(state, report):
    request = make_waiting(state, State.PENDING)
    OpenNotification.objects.filter(position=0).update(route=make_route(state=Route.State.DISABLED))
    [answer] = settle([request.pk], now=request.reply_due_at)
    assert reported(answer) == [report, SUCCESS]


def test_every_outcome_either_ends_a_notification_or_schedules_another_attempt():
    assert set(Outcome) - set(FINISHED_BY) == {Outcome.TRANSIENT, Outcome.CONFIG, Outcome.AMBIGUOUS}
    assert all(state.is_terminal for state in FINISHED_BY.values())
