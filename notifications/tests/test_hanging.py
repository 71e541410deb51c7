"""A gateway that hangs for some pushes: their task ends, other channels go on, and what comes late is recorded."""

import asyncio
import threading
from datetime import timedelta
from time import monotonic

import pytest
from django.db import DataError, IntegrityError, OperationalError, connection
from django.utils import timezone

from notifications import channels
from notifications.delivery import Lanes, claim, deliver, take_up_lost
from notifications.delivery.late import own_recorder
from notifications.messages import ChannelKey, Outcome, Push, Result
from notifications.models import Attempt, Notification
from tests.delivering import LEASE, NOW, RecordingGateway, fresh, make_due, make_due_to_app, other_session, prove

APPLE, GOOGLE = ChannelKey(1, "im.status"), ChannelKey(2, "")
PATIENCE = timedelta(seconds=0.3)
State = Notification.State


class HangingGateway(RecordingGateway):
    """Keeps Apple's pushes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    async def send(self, push: Push) -> Result:
        if push.token_type == APPLE.token_type:
            await asyncio.to_thread(self.let_go.wait, 20)
        return await super().send(push)


@pytest.fixture
def gateway():
    """With two channels to which something was delivered before."""
    prove(APPLE, GOOGLE)
    gateway = HangingGateway()
    yield gateway
    gateway.let_go.set()
    assert own_recorder().wait(10)


@pytest.fixture
def lanes():
    return Lanes(3)


def run(notifications, gateway, lanes, when_late=lambda _: None):
    """Deliver; returns the requests concerned in time, and how long it took."""
    started, ids = monotonic(), [n.pk for n in notifications]
    handfuls = deliver(ids, gateway, lease=LEASE, patience=PATIENCE, when_late=when_late, lanes=lanes)
    return set().union(*handfuls), monotonic() - started


@pytest.mark.django_db(transaction=True)
def test_a_task_leaves_what_hangs_after_its_patience_and_records_the_rest(gateway, lanes):
    hanging, quick = make_due_to_app(), make_due()
    told, seconds = run([hanging, quick], gateway, lanes)
    assert told == {quick.request_id}
    assert PATIENCE.total_seconds() <= seconds < 10 * PATIENCE.total_seconds()
    assert (fresh(hanging).state, fresh(quick).state) == (State.IN_FLIGHT, State.DELIVERED)


@pytest.mark.django_db(transaction=True)
def test_what_comes_late_is_recorded_and_told(gateway, lanes):
    hanging, told = make_due_to_app(), []
    run([hanging], gateway, lanes, told.append)
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert fresh(hanging).state == State.DELIVERED
    assert told == [{hanging.request_id}]
    assert Attempt.objects.get().outcome == "delivered"
    assert len(gateway.pushes) == 1


@pytest.mark.django_db(transaction=True)
def test_a_task_does_not_wait_again_for_a_channel_that_hangs(gateway, lanes):
    run([make_due_to_app()], gateway, lanes)
    assert lanes.is_slow(APPLE)
    _, seconds = run([make_due_to_app()], gateway, lanes)
    assert seconds < PATIENCE.total_seconds()
    assert not lanes.is_slow(GOOGLE)
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert not lanes.is_slow(APPLE)


@pytest.mark.django_db(transaction=True)
def test_what_finds_no_room_in_its_channel_is_put_back_untried(gateway, lanes):
    run([make_due_to_app() for _ in range(3)], gateway, lanes)
    crowded = make_due_to_app(enqueued_at=NOW)
    run([crowded], gateway, lanes)
    row = fresh(crowded)
    assert (row.state, row.attempt_count, row.enqueued_at) == (State.PENDING, 0, None)
    assert timezone.now() < row.next_attempt_at < timezone.now() + timedelta(seconds=10)


@pytest.mark.django_db(transaction=True)
def test_a_full_channel_takes_no_room_from_another(gateway, lanes):
    run([make_due_to_app() for _ in range(3)], gateway, lanes)
    google = [make_due() for _ in range(3)]
    told, _ = run(google, gateway, lanes)
    assert told == {n.request_id for n in google}


@pytest.mark.django_db(transaction=True)
def test_a_batch_larger_than_its_channel_is_sent_in_parts(gateway, lanes):
    notifications = [make_due() for _ in range(8)]
    told, _ = run(notifications, gateway, lanes)
    assert len(told) == len(gateway.pushes) == 8


@pytest.mark.django_db(transaction=True)
def test_a_process_that_ends_leaves_to_the_sweep_what_still_hangs(gateway, lanes):
    hanging = make_due_to_app()
    run([hanging], gateway, lanes)
    assert not own_recorder().wait(0.01)
    assert take_up_lost(now=timezone.now() + LEASE) == 1
    assert fresh(hanging).state == State.AMBIGUOUS


@pytest.mark.django_db(transaction=True)
def test_a_result_that_comes_after_its_lease_does_not_touch_the_next_attempt(gateway, lanes):
    gateway.answer = lambda _: Result(Outcome.TRANSIENT)
    hanging = make_due_to_app()
    run([hanging], gateway, lanes)
    later = timezone.now() + LEASE
    take_up_lost(now=later)
    claim([hanging.pk], gateway_name="recording", now=later, lease=LEASE, lanes=Lanes(1))
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert (fresh(hanging).state, fresh(hanging).attempt_count) == (State.IN_FLIGHT, 2)


@pytest.mark.django_db(transaction=True)
def test_a_listener_that_fails_does_not_end_the_recorder(gateway, lanes):
    def fail(_request_ids):
        raise ValueError

    first, second = make_due_to_app(), make_due_to_app()
    run([first], gateway, lanes, fail)
    run([second], gateway, lanes)
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert {fresh(n).state for n in (first, second)} == {State.DELIVERED}


@pytest.mark.django_db(transaction=True)
def test_made_up_apps_share_one_lane_and_take_no_room_from_those_that_work(gateway, lanes):
    strangers = [make_due_to_app(f"made.up.{number}") for number in range(5)]
    run(strangers, gateway, lanes)
    assert [fresh(stranger).state for stranger in strangers].count(State.IN_FLIGHT) == 3

    app = make_due_to_app()
    run([app], gateway, lanes)
    assert fresh(app).state == State.IN_FLIGHT


@pytest.mark.django_db(transaction=True)
def test_what_comes_after_its_caller_failed_is_recorded_told_and_not_sent_again(gateway, lanes):
    hanging, quick, told = make_due_to_app(), make_due(), []

    def fail():
        ids = [hanging.pk, quick.pk]
        for _ in deliver(ids, gateway, lease=LEASE, patience=LEASE, when_late=told.append, lanes=lanes):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - ours
        fail()
    assert not lanes.is_slow(APPLE)
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert (fresh(hanging).state, fresh(quick).state) == (State.DELIVERED, State.DELIVERED)
    assert told == [{hanging.request_id}]
    assert len(gateway.pushes) == 2


@pytest.mark.django_db(transaction=True)
def test_what_comes_after_a_result_that_cannot_be_recorded_is_recorded(gateway, lanes):
    unspeakable = Result(Outcome.DELIVERED, "\0")
    gateway.answer = lambda push: Result(Outcome.DELIVERED) if push.token_type == APPLE.token_type else unspeakable
    hanging = make_due_to_app()
    with pytest.raises(DataError):
        run([hanging, make_due()], gateway, lanes)
    gateway.let_go.set()
    assert own_recorder().wait(10)
    assert fresh(hanging).state == State.DELIVERED


@pytest.mark.django_db(transaction=True)
def test_parking_that_fails_neither_keeps_room_nor_stops_what_is_sent(gateway, lanes):
    paused, quick = make_due_to_app(), make_due()
    channels.pause(APPLE, by="ann", why="new key", now=NOW)
    with other_session() as other, connection.cursor() as own:
        other.execute("SELECT FROM notifications_channel WHERE state = 'paused' FOR UPDATE")
        own.execute("SET lock_timeout = '50ms'")
        with pytest.raises(OperationalError):
            run([paused, quick], gateway, lanes)
        own.execute("RESET lock_timeout")
    assert (fresh(paused).state, fresh(quick).state) == (State.PENDING, State.DELIVERED)
    assert lanes.wait_for_room(GOOGLE, 3, until=0)


# Lanes ----------------------------------------------------------------------------------------------------------------


def test_a_lane_has_room_again_once_a_push_left(lanes):
    assert [lanes.enter(APPLE) for _ in range(4)] == [True, True, True, False]
    lanes.leave([APPLE])
    assert lanes.enter(APPLE)
    assert lanes.enter(GOOGLE)


def test_waiting_for_room_ends_when_there_is_some(lanes):
    for _ in range(3):
        lanes.enter(APPLE)
    threading.Timer(0.05, lambda: lanes.leave([APPLE, APPLE])).start()
    assert lanes.wait_for_room(APPLE, 2, until=monotonic() + 10)
    assert not lanes.wait_for_room(APPLE, 3, until=monotonic() + 0.01)


def test_nobody_waits_for_room_in_a_slow_channel(lanes):
    for _ in range(3):
        lanes.enter(APPLE)
    threading.Timer(0.05, lambda: lanes.mark_overdue([APPLE])).start()
    started = monotonic()
    assert not lanes.wait_for_room(APPLE, 1, until=started + 10)
    assert monotonic() - started < 5


@pytest.mark.django_db
def test_a_claim_that_fails_gives_its_room_back(lanes):
    due = [make_due().pk for _ in range(3)]
    with pytest.raises(IntegrityError):
        claim(due, gateway_name=None, now=NOW, lease=LEASE, lanes=lanes)
    assert lanes.wait_for_room(GOOGLE, 3, until=0)
