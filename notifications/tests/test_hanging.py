"""Tests of a gateway that hangs for some pushes: no batch waits, other apps go on, and late results are recorded."""

from math import inf

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from kit.batches.worker import Worker
from kit.http import MAX_CONNECTIONS
from notifications.messages import AppKey, Outcome, QueueKey, Result
from notifications.models import Attempt, Notification
from notifications.queues import queues
from notifications.queues.capacity import ANSWERS_TO_GROW, FIRST_LIMIT, ConcurrencyLimits, Slot
from tests.rig.delivering import (
    APP,
    LEASE,
    NOW,
    DeliveryProcess,
    Gate,
    LockedStep,
    fresh,
    make_due,
    make_due_to_app,
    prove,
    take,
)
from tests.rig.rows import make_registration, make_route
from tests.rig.statements import other_session

APPLE, GOOGLE = AppKey(1, "im.status"), AppKey(2, "")
State = Notification.State


@pytest.fixture
def gateway(transactional_db):
    """Return a gateway, with deliveries recorded for two apps."""
    prove(APPLE, GOOGLE)
    gateway = Gate(lambda push: push.app.token_type == APPLE.token_type)
    yield gateway
    gateway.is_open.set()


@pytest.fixture
def deliverer(gateway):
    """Yield a process with a limit of three pushes in each queue."""
    deliverer = DeliveryProcess(gateway, limit=3)
    yield deliverer
    gateway.is_open.set()
    deliverer.process_until(lambda: not deliverer.delivery.under_way)


def states(*notifications):
    return [fresh(notification).state for notification in notifications]


def queue_id(app, *, is_proven=False):
    return queues.load().id_of(QueueKey("gorush", *app, is_proven))


def budget_in(limits, queue):
    """Return how many pushes the queue has capacity for."""
    count = 0
    while limits.enter(Slot(queue)):
        count += 1
    limits.give_back()
    return count


def carry(limits, queue, *, at_once, seconds=0.05):
    """Enter ``at_once`` pushes, and complete each that has capacity after ``seconds``. Return the capacity then."""
    limits.note_crowded([])
    entered = [limits.enter(Slot(queue)) for _ in range(at_once)]
    limits.keep()
    for _ in range(entered.count(True)):
        limits.complete(Slot(queue), seconds)
    limits.has_capacity_again()
    limits.note_crowded([])
    return budget_in(limits, queue)


def delivered(deliverer, *notifications):
    deliverer.process_until(lambda: states(*notifications) == [State.DELIVERED] * len(notifications))


def test_no_batch_waits_for_a_hanging_push_and_its_late_result_is_recorded(gateway, deliverer):
    hanging, quick = make_due_to_app(), make_due()
    delivered(deliverer, quick)
    assert states(hanging) == [State.IN_FLIGHT]
    assert deliverer.delivery.under_way == 1
    gateway.is_open.set()
    delivered(deliverer, hanging)
    assert Attempt.objects.get(notification=hanging).outcome == "delivered"
    assert len(gateway.pushes) == 2


def test_a_hanging_queue_does_not_delay_the_backlog_of_another(deliverer):
    """The process does not poll the table after the first batch, which finds all that is due."""
    hanging, google = [make_due_to_app() for _ in range(5)], [make_due() for _ in range(20)]
    deliverer.process_batch()
    deliverer.worker._rows.look_at = float("inf")
    while states(*google) != [State.DELIVERED] * 20:
        if not deliverer.worker.process_batch(now=timezone.now()) and deliverer.worker._next_at() == inf:
            deliverer.wait()
    assert sorted(states(*hanging)) == [State.IN_FLIGHT] * 3 + [State.PENDING] * 2


def test_made_up_addresses_of_an_app_take_no_capacity_from_its_phones(deliverer):
    foreign = [make_due_to_app() for _ in range(5)]
    deliverer.process_batch()
    assert states(*foreign).count(State.IN_FLIGHT) == 3
    phone = make_due(route=make_registration(route=make_route(token_type=1, app_topic=APP, last_success_at=NOW)).route)
    deliverer.process_batch()
    assert states(phone) == [State.IN_FLIGHT]
    assert [budget_in(deliverer.delivery.limits, queue_id(APPLE, is_proven=p)) for p in (False, True)] == [0, 2]


def test_a_result_that_cannot_be_stored_is_quarantined_and_the_others_are_recorded(gateway, deliverer):
    bad = make_due()
    others = [make_due() for _ in range(2)]
    gateway.answer = lambda push: Result(Outcome.DELIVERED, "\0" if push.notification_id == bad.pk else "")
    delivered(deliverer, *others)
    deliverer.process_until(lambda: not deliverer.delivery.under_way)
    assert states(bad) == [State.IN_FLIGHT]
    assert budget_in(deliverer.delivery.limits, queue_id(GOOGLE)) == 3
    assert [held.notification_id for held in take(now=timezone.now() + LEASE)] == [bad.pk]


def test_a_batch_that_fails_half_way_releases_the_capacity_of_its_claims_and_sends_none(gateway, deliverer):
    """The claims are written, and a later step of the same batch meets a lock."""
    last, notifications = LockedStep(), [make_due() for _ in range(3)]
    deliverer.worker = Worker([*deliverer.delivery.steps(), last], deliverer.wakeup)
    with pytest.raises(OperationalError):
        deliverer.process_batch()
    assert states(*notifications) == [State.PENDING] * 3
    assert (gateway.pushes, deliverer.delivery.under_way) == ([], 0)
    assert budget_in(deliverer.delivery.limits, queue_id(GOOGLE)) == 3
    last.is_locked = False
    delivered(deliverer, *notifications)
    assert len(gateway.pushes) == 3


def test_a_later_failure_does_not_release_the_capacity_of_pushes_in_flight(deliverer):
    for _ in range(3):
        make_due_to_app()
    deliverer.process_batch()
    with other_session() as other, connection.cursor() as own:
        make_due()
        other.execute("LOCK TABLE notifications_opennotification IN SHARE MODE")
        own.execute("SET lock_timeout = '50ms'")
        deliverer.process_batch()
        own.execute("RESET lock_timeout")
    assert [budget_in(deliverer.delivery.limits, queue_id(app)) for app in (APPLE, GOOGLE)] == [0, 3]


# Limits ---------------------------------------------------------------------------------------------------------------

ONE, TWO = 1, 2  # ids of queues


def test_a_limit_starts_small_and_grows_with_answers_while_the_queue_is_crowded():
    limits = ConcurrencyLimits(2, connections=10)
    rounds = [carry(limits, ONE, at_once=6) for _ in range(30)]
    assert rounds == [2] * 11 + [3] * 8 + [4] * 6 + [5] * 5
    assert budget_in(limits, TWO) == 2


@pytest.mark.parametrize(
    ("seconds", "largest"), [([0.2], 5), ([0.4], 5), ([0.4, 1.5], 5), ([0.06, 0.26], 3), ([0.4, 1.7], 3), ([inf], 2)]
)
def test_a_limit_grows_by_deliveries_that_take_not_much_longer_than_the_quickest(seconds, largest):
    limits = ConcurrencyLimits(2, connections=10)
    for number in range(40):
        carry(limits, ONE, at_once=6, seconds=seconds[0] if number < 15 else seconds[-1])
    assert budget_in(limits, ONE) == largest


def test_a_limit_that_suffices_does_not_grow():
    limits = ConcurrencyLimits(2, connections=10)
    assert {carry(limits, ONE, at_once=2) for _ in range(3 * ANSWERS_TO_GROW)} == {2}


def fill(limits, queue):
    """Send as many pushes as the queue has capacity for, and return their number."""
    count = budget_in(limits, queue)
    for _ in range(count):
        limits.enter(Slot(queue))
    limits.keep()
    return count


def test_queues_that_hang_one_after_the_other_leave_connections_to_every_other_queue():
    limits = ConcurrencyLimits()
    for _ in range(MAX_CONNECTIONS * ANSWERS_TO_GROW // FIRST_LIMIT):
        carry(limits, ONE, at_once=256)
    assert [fill(limits, queue) for queue in range(1, 7)] == [128, 32, 32, 32, 16, 8]
    assert [fill(limits, queue) for queue in range(7, 13)] == [4, 2, 1, 1, 1, 1]
    for _ in range(128):
        limits.complete(Slot(ONE))
    assert [budget_in(limits, queue) for queue in (ONE, TWO, 20)] == [63, 0, 32]
