"""A gateway that cannot be reached: one push at a time asks for it, and everything else waits."""

from datetime import timedelta

import pytest
from django.utils import timezone

from notifications import channels, outages
from notifications.messages import UNREACHABLE, ChannelKey, Outcome, Result
from notifications.models import Attempt, GatewayOutage, Notification
from tests.delivering import APP, Desk, RecordingGateway, fresh, make_due, make_due_to_app
from tests.factories import make_registration, make_route

State = Notification.State
AWAY = Result(Outcome.TRANSIENT, UNREACHABLE)
BUSY = Result(Outcome.TRANSIENT, "http_503")

pytestmark = pytest.mark.django_db


@pytest.fixture
def gateway():
    return RecordingGateway(lambda _: AWAY)


def make_outage(*, next_probe_at=None, name="gorush"):
    now = timezone.now()
    return GatewayOutage.objects.create(name=name, since=now, next_probe_at=next_probe_at or now + timedelta(hours=1))


def make_parked(count=1):
    rows = [make_due() for _ in range(count)]
    outages.park([row.pk for row in rows])
    assert all(fresh(row).next_attempt_at == row.expires_at for row in rows)
    return rows


def test_nothing_is_claimed_for_a_gateway_that_is_away(gateway):
    """Every open notification used to be sent again every ten seconds, each time with a row for the attempt."""
    rows = [make_due() for _ in range(5)]
    desk = Desk(gateway)
    desk.work_off()
    assert GatewayOutage.objects.get().name == "gorush"
    Notification.objects.update(next_attempt_at=timezone.now())
    desk.work_off()
    assert len(gateway.pushes) == 5
    assert {fresh(row).next_attempt_at for row in rows} == {rows[0].expires_at}
    desk.turn()
    assert len(gateway.pushes) == 5


def test_a_gateway_that_is_away_is_probed_with_one(gateway):
    make_outage(next_probe_at=timezone.now() - timedelta(seconds=1))
    make_parked(5)
    desk = Desk(gateway)
    desk.work_off()
    assert len(gateway.pushes) == 1
    assert GatewayOutage.objects.get().next_probe_at > timezone.now()
    GatewayOutage.objects.update(next_probe_at=timezone.now() - timedelta(seconds=1))
    desk.work_off()
    assert len(gateway.pushes) == 2


def test_a_probe_that_reaches_the_gateway_releases_what_waited(gateway):
    rows = make_parked_behind_an_outage()
    gateway.answer = lambda _: Result(Outcome.DELIVERED)
    desk = Desk(gateway)
    desk.turn_until(lambda: all(fresh(row).state == State.DELIVERED for row in rows))
    assert not GatewayOutage.objects.exists()
    assert len(gateway.pushes) == len(rows)


def make_parked_behind_an_outage():
    make_outage(next_probe_at=timezone.now() - timedelta(seconds=1))
    return make_parked(5)


def test_a_gateway_that_answers_with_a_failure_is_there(gateway):
    make_parked_behind_an_outage()
    gateway.answer = lambda _: BUSY
    Desk(gateway).work_off()
    assert not GatewayOutage.objects.exists()


def test_a_push_that_was_on_its_way_before_ends_no_outage(gateway):
    make_due()
    gateway.answer = lambda _: Result(Outcome.DELIVERED)
    desk = Desk(gateway)
    desk.turn()
    make_outage()
    desk.work_off()
    assert GatewayOutage.objects.exists()


def test_a_gateway_that_took_another_push_of_the_batch_is_not_away():
    replies = iter([AWAY, Result(Outcome.DELIVERED), AWAY])
    for _ in range(3):
        make_due()
    desk = Desk(RecordingGateway(lambda _: next(replies)))
    desk.turn()
    while not desk.delivery.flights.are_all_done():
        desk.wait()
    desk.turn()
    assert not GatewayOutage.objects.exists()


def test_other_gateways_go_on(gateway):
    make_outage(name="other")
    waiting = make_due(route=make_registration(route=make_route(gateway="other")).route)
    other = make_due()
    gateway.answer = lambda _: Result(Outcome.DELIVERED)
    Desk(gateway).work_off()
    assert (fresh(waiting).state, fresh(other).state) == (State.PENDING, State.DELIVERED)


def test_the_end_of_an_outage_does_not_release_what_a_paused_app_waits_for():
    outage = make_outage()
    paused, other = make_due_to_app(), make_due()
    channels.pause(ChannelKey(1, APP), by="ann", why="new key", now=timezone.now())
    outages.park([paused.pk, other.pk])
    outages.end(outage.name, now=timezone.now())
    assert fresh(paused).next_attempt_at == paused.expires_at
    assert fresh(other).next_attempt_at < timezone.now() + timedelta(seconds=1)


def test_attempts_that_fail_alike_are_one_row_with_a_number(gateway):
    row = make_due()
    for answer in (BUSY, BUSY, BUSY, Result(Outcome.TRANSIENT, "http_429"), BUSY):
        gateway.answer = lambda _, answer=answer: answer
        Notification.objects.update(next_attempt_at=timezone.now())
        Desk(gateway).work_off()
    attempts = Attempt.objects.order_by("number").values_list("number", "code", "repeat_count")
    assert list(attempts) == [(1, "http_503", 2), (4, "http_429", 0), (5, "http_503", 0)]
    assert fresh(row).attempt_count == 5
    assert Attempt.objects.get(number=1).repeated_at > Attempt.objects.get(number=1).started_at
    assert len({push.attempt_number for push in gateway.pushes}) == 5
