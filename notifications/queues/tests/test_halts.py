"""Tests of halts: begun by operators, breakers and gateways, ended one by one, and probed meanwhile."""

import os
from dataclasses import replace
from datetime import timedelta
from itertools import permutations

import pytest
from django.core.cache import cache
from django.utils import timezone

from notifications import retention
from notifications.gateways import CUT_OFF
from notifications.messages import UNREACHABLE, AppKey, Outcome, QueueKey, Result
from notifications.metrics import CHANNEL_TRIPS
from notifications.models import Attempt, Channel, Halt, Notification, OpenNotification
from notifications.queues import halts, queues
from notifications.queues.capacity import ConcurrencyLimits
from notifications.queues.halts import Reach
from registrations.models import Route
from tests.rig.delivering import (
    APP,
    LONG_AGO,
    NOW,
    DeliveryProcess,
    RecordingGateway,
    answered,
    claimed,
    expire,
    fresh,
    make_due,
    make_due_to_app,
    prove,
    recorded,
    take,
)
from tests.rig.logs import capture_logs
from tests.rig.rows import make_halt, make_registration, make_route
from tests.rig.server import wait_until
from tests.rig.statements import other_session

pytestmark = pytest.mark.django_db
APPLE, GOOGLE = AppKey(1, APP), AppKey(2, "")
PROBE = timedelta(seconds=5)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
State = Notification.State
UNAVAILABLE = Result(Outcome.TRANSIENT, UNREACHABLE, is_unreached=True)
BUSY = Result(Outcome.TRANSIENT, "http_503")
DELIVERED = Result(Outcome.DELIVERED)
CUT_OFF_RESULT = Result(Outcome.AMBIGUOUS, "cut_off")


@pytest.fixture(autouse=True)
def _apps():
    """Record a delivery to each of these apps."""
    prove(APPLE, GOOGLE)


def kinds():
    return sorted(Halt.objects.in_force().values_list("kind", flat=True))


def make_proven(**fields):
    """Create a notification for a proven address."""
    route = make_route(token_type=1, app_topic=APP, last_success_at=LONG_AGO)
    return make_due(route=make_registration(route=route).route, **fields)


def halt_gateway():
    halts.begin(halts.Kind.UNREACHABLE, "gorush", now=NOW)


# Operators and breakers -----------------------------------------------------------------------------------------------


def test_an_ended_halt_keeps_who_began_it_and_who_ended_it():
    halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="new key", now=NOW)
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="refused", now=NOW)
    halt_gateway()
    halts.begin(halts.Kind.DRAINED, by="ann", reason="gorush moves", now=NOW)
    later = NOW + timedelta(minutes=3)
    halts.end(halts.Kind.PAUSED, APPLE, by="bob", now=later)
    halts.end(halts.Kind.TRIPPED, APPLE, now=later)
    halts.end(halts.Kind.UNREACHABLE, "gorush", now=later)
    halts.end(halts.Kind.DRAINED, by="bob", now=later)
    fields = ("kind", "gateway", "token_type", "app_topic", "reason", "by", "ended_by")
    assert set(Halt.objects.values_list(*fields)) == {
        ("paused", "", 1, APP, "new key", "ann", "bob"),
        ("tripped", "", 1, APP, "refused", "", ""),
        ("unreachable", "gorush", None, "", "", "", ""),
        ("drained", "", None, "", "gorush moves", "ann", "bob"),
    }
    assert set(Halt.objects.values_list("since", "ended_at")) == {(NOW, later)}


def test_ended_halts_are_kept_as_long_as_notifications():
    for ago in (1, 3):
        at = NOW - timedelta(days=ago)
        halts.begin(halts.Kind.TRIPPED, APPLE, reason=f"{ago} days ago", now=at)
        halts.end(halts.Kind.TRIPPED, APPLE, now=at)
    list(retention.purge(now=NOW, keep=timedelta(days=2)))
    assert Halt.objects.get().reason == "1 days ago"


def test_a_trip_is_an_error_in_the_log():
    with capture_logs() as logs:
        halts.begin(halts.Kind.TRIPPED, APPLE, reason="5 of 5 sends refused: InvalidProviderToken", now=NOW)
    [alarm] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (alarm["event"], alarm["kind"]) == ("halt_begun", "tripped")
    assert (alarm["token_type"], alarm["app_topic"]) == (1, APP)
    assert "InvalidProviderToken" in alarm["reason"]


def test_only_the_trips_of_breakers_are_counted(django_capture_on_commit_callbacks):
    def trip(**by):
        before = CHANNEL_TRIPS.labels("ios")._value.get()
        with django_capture_on_commit_callbacks(execute=True):
            halts.begin(halts.Kind.TRIPPED, APPLE, reason="why", now=NOW, **by)
        halts.end(halts.Kind.TRIPPED, APPLE, by="ann", now=NOW)
        return CHANNEL_TRIPS.labels("ios")._value.get() - before

    assert (trip(), trip(by="ann")) == (1, 0)


def test_firebase_is_one_app_whatever_app_topic_its_routes_carry():
    halts.begin(halts.Kind.PAUSED, GOOGLE, by="ann", reason="", now=NOW)
    waiting = make_due()
    Route.objects.update(app_topic="anything")
    assert claimed(waiting) == []
    halts.end(halts.Kind.PAUSED, GOOGLE, by="ann", now=NOW)
    assert len(claimed(waiting)) == 1


def test_made_up_apps_wait_behind_no_halt_of_an_app():
    halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="", now=NOW)
    assert len(claimed(make_due_to_app("made.up"))) == 1


# Rows of waiting notifications ----------------------------------------------------------------------------------------


def test_a_notification_behind_a_halt_expires_at_its_time_and_not_before():
    halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="", now=NOW)
    waiting = make_due_to_app(expires_at=NOW + SECOND)
    assert claimed(waiting) == []
    assert expire(NOW) == 0
    assert expire(NOW + SECOND) == 1
    row = fresh(waiting)
    assert (row.state, row.finished_at, row.message, row.due_at) == ("expired", NOW + SECOND, None, None)


# Two halts at once ----------------------------------------------------------------------------------------------------

BEGIN = {
    "drained": lambda: halts.begin(halts.Kind.DRAINED, by="ann", reason="x", now=NOW),
    "unreachable": halt_gateway,
    "paused": lambda: halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="x", now=NOW),
    "tripped": lambda: halts.begin(halts.Kind.TRIPPED, APPLE, reason="x", now=NOW),
}
END = {
    "drained": lambda: halts.end(halts.Kind.DRAINED, by="ann", now=NOW),
    "unreachable": lambda: halts.end(halts.Kind.UNREACHABLE, "gorush", now=NOW),
    "paused": lambda: halts.end(halts.Kind.PAUSED, APPLE, by="ann", now=NOW),
    "tripped": lambda: halts.end(halts.Kind.TRIPPED, APPLE, now=NOW),
}


@pytest.mark.parametrize("kind", BEGIN)
def test_every_halt_begins_and_ends_once(kind):
    for _ in range(2):
        BEGIN[kind]()
    assert (kinds(), END[kind](), END[kind](), kinds()) == ([kind], True, False, [])


@pytest.mark.parametrize(("first", "second"), [*permutations(BEGIN, 2)])
def test_ending_one_halt_never_ends_another(first, second):
    """Paused and unreachable, ended in both orders, and every other pair. What is paused or drained is not probed."""
    waiting = make_proven()
    BEGIN[first]()
    BEGIN[second]()
    assert claimed(waiting) == []
    if {first, second} & {"paused", "drained"}:
        assert claimed(waiting, now=NOW + PROBE) == []
    END[first]()
    assert kinds() == [second]
    assert claimed(waiting) == []
    END[second]()
    assert len(claimed(waiting)) == 1


# Probes ---------------------------------------------------------------------------------------------------------------


def test_a_tripped_app_is_probed_with_one_push_at_a_time():
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    waiting = [make_due_to_app() for _ in range(3)]
    assert claimed(*waiting, now=NOW + PROBE - SECOND) == []
    [probe] = claimed(*waiting, now=NOW + PROBE)
    assert probe.is_probe
    assert Attempt.objects.get(pk=probe.attempt_id).is_probe
    assert claimed(*waiting, now=NOW + PROBE + SECOND) == []
    assert len(claimed(*waiting, now=NOW + 2 * PROBE)) == 1


def test_a_probe_goes_to_a_proven_address_if_one_waits():
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    outsider = make_due_to_app(due_at=LONG_AGO)
    proven = {make_proven(due_at=NOW - n * SECOND).pk for n in (1, 2)}
    taken = [held.notification_id for n in (1, 2, 3) for held in take(now=NOW + n * PROBE)]
    assert set(taken[:2]) == proven
    assert taken[2:] == [outsider.pk]


def test_each_probe_goes_to_another_address_than_the_last():
    """An address that always fails, with older pushes than all others, must not keep the breaker open."""
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    failing, honest = make_proven(), make_proven()
    for _ in range(20):
        make_due(route=failing.route)
    probes = [probe for n in range(1, 9) for probe in take(now=NOW + n * PROBE)]
    assert {probe.route_id for probe in probes[:2]} == {failing.route_id, honest.route_id}
    assert {probe.route_id for probe in probes[2:]} == {failing.route_id}  # nobody else waits


def test_one_phone_under_many_names_is_one_address_for_probes():
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    names = [make_proven() for _ in range(40)]
    Route.objects.filter(pk__in=[row.route_id for row in names]).update(
        address_digest=b"the same phone", delivered_digest=b"the same phone"
    )
    honest = make_proven()
    probes = [probe.route_id for n in (1, 2) for probe in take(now=NOW + n * PROBE)]
    assert honest.route_id in probes


def test_a_notification_in_a_wrong_queue_uses_up_no_probe():
    """An attacker registers one phone under many names, has pushes sent to it, and then registers made-up tokens."""
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    pestering = [make_proven(due_at=LONG_AGO) for _ in range(20)]
    phone = make_proven(due_at=NOW)
    take()  # this sorts them into their queue
    Route.objects.filter(pk__in=[row.route_id for row in pestering]).update(address_digest=b"made up")
    [probe] = take(now=NOW + PROBE)
    assert probe.notification_id == phone.pk


def test_a_process_without_capacity_uses_up_no_probe():
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    make_proven()
    take()  # this sorts it into its queue
    assert take(now=NOW + PROBE, limits=ConcurrencyLimits(0)) == []
    assert len(take(now=NOW + PROBE)) == 1


def test_an_app_that_is_tripped_at_a_gateway_that_is_away_gets_one_probe_for_both():
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    halt_gateway()
    waiting = make_proven()
    assert claimed(waiting, now=NOW + PROBE - SECOND) == []
    answered(DELIVERED, waiting, now=NOW + PROBE)
    assert kinds() == []


@pytest.mark.parametrize(
    ("result", "is_closed"),
    [
        *((Result(outcome), True) for outcome in (Outcome.DELIVERED, Outcome.DEAD, Outcome.PAYLOAD)),
        *((Result(outcome), False) for outcome in (Outcome.CONFIG, Outcome.TRANSIENT, Outcome.AMBIGUOUS)),
        (Result(Outcome.DELIVERED, "dry_run", is_dry_run=True), False),
    ],
    ids=lambda value: str(getattr(value, "outcome", value)),
)
def test_a_probe_that_apple_or_google_judged_closes_the_breaker_and_no_other(result, is_closed):
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    probe, waiting = make_due_to_app(), make_due_to_app()
    answered(result, probe, now=NOW + PROBE)
    assert kinds() == ["tripped"] * (not is_closed)
    assert len(claimed(waiting, now=NOW + PROBE + SECOND)) == is_closed
    is_success = result == DELIVERED
    assert (Channel.objects.get(**APPLE._asdict()).last_success_at == LONG_AGO) is not is_success


def test_the_success_of_a_push_sent_before_the_trip_does_not_close_the_breaker():
    held = claimed(make_due_to_app())
    halts.begin(halts.Kind.TRIPPED, APPLE, reason="", now=NOW)
    recorded([(claim, DELIVERED) for claim in held])
    assert kinds() == ["tripped"]


# Gateways -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gateway():
    return RecordingGateway(lambda _: UNAVAILABLE)


def test_nothing_is_claimed_for_a_gateway_that_nobody_reached_for_five_seconds(gateway):
    """Every open notification used to be sent again every ten seconds, and each attempt was a row."""
    now = timezone.now()
    for _ in range(5):
        make_due()
    deliverer = DeliveryProcess(gateway)
    deliverer.process_backlog(now=now)
    assert (len(gateway.pushes), kinds()) == (5, [])
    deliverer.process_backlog(now=now + 5 * SECOND)
    assert (len(gateway.pushes), kinds()) == (5, [])
    deliverer.process_backlog(now=now + 6 * SECOND)
    assert (len(gateway.pushes), kinds()) == (6, ["unreachable"])
    DeliveryProcess(gateway).process_backlog(now=now + 7 * SECOND)
    assert len(gateway.pushes) == 6


def test_a_process_that_is_cut_off_halts_nobody_leaves_its_pushes_to_others_and_is_named(gateway, transactional_db):
    now, works = timezone.now(), RecordingGateway()
    rows = [make_due() for _ in range(5)]
    cut_off, other = DeliveryProcess(gateway), DeliveryProcess(works)
    with other_session() as session:
        session.autocommit = True
        session.execute("LISTEN batches_peers")
        cut_off.process_backlog(now=now)
        assert list(session.notifies(timeout=60, stop_after=1))
    other.process_backlog(now=now)
    assert {fresh(row).state for row in rows} == {State.DELIVERED}
    late = make_due()
    for seconds in range(6, 60, 6):
        OpenNotification.objects.filter(pk=late.pk).update(due_at=now)
        cut_off.process_backlog(now=now + seconds * SECOND)
        other.process_backlog(now=now + seconds * SECOND)
    assert (fresh(late).state, kinds(), len(works.pushes)) == (State.DELIVERED, [], 6)
    wait_until(lambda: f"process {os.getpid()} on " in (CUT_OFF.read("gorush") or ""), what="it is named")
    cache.clear()


@pytest.mark.parametrize(
    ("result", "is_halted"),
    [(DELIVERED, False), (BUSY, False), (Result(Outcome.AMBIGUOUS, "timeout"), True), (CUT_OFF_RESULT, True)],
)
def test_a_late_answer_to_another_process_is_contact(result, is_halted):
    """Each push takes eight seconds, so that the answers to others are those of pushes from before."""
    theirs, mine, again = (make_due() for _ in range(3))
    reach, before = Reach(), claimed(theirs, now=NOW - 3 * SECOND)
    recorded([(claim, UNAVAILABLE) for claim in claimed(mine)], reach=reach)
    late = replace(result, began_at=NOW - 3 * SECOND)
    recorded([(claim, late) for claim in before], now=NOW + 5 * SECOND)
    at = NOW + 6 * SECOND
    recorded([(claim, UNAVAILABLE) for claim in claimed(again, now=at)], now=at, reach=reach)
    assert kinds() == ["unreachable"] * is_halted


def test_a_process_that_is_cut_off_tries_one_push_in_each_pause_and_goes_on_when_it_comes_through(gateway):
    now = timezone.now()
    make_due()
    deliverer = DeliveryProcess(gateway)
    deliverer.process_backlog(now=now)
    rows = [make_due(due_at=now) for _ in range(5)]
    for seconds in range(1, 6):
        deliverer.process_backlog(now=now + seconds * SECOND)
    assert len(gateway.pushes) == 1
    gateway.answer = lambda _: DELIVERED
    deliverer.process_batch(now=now + 6 * SECOND)
    while not deliverer.delivery.are_all_done():
        deliverer.wait()
    assert len(gateway.pushes) == 2
    deliverer.process_backlog(now=now + 7 * SECOND)
    assert {fresh(row).state for row in rows} == {State.DELIVERED}


def test_a_gateway_that_answers_with_a_failure_is_there(gateway):
    make_halt("unreachable", gateway="gorush", next_probe_at=timezone.now() - SECOND)
    make_due()
    gateway.answer = lambda _: BUSY
    DeliveryProcess(gateway).process_backlog()
    assert kinds() == []


def test_a_push_that_was_on_its_way_before_ends_no_halt(gateway):
    make_due()
    gateway.answer = lambda _: DELIVERED
    deliverer = DeliveryProcess(gateway)
    deliverer.process_batch()
    make_halt("unreachable", gateway="gorush", next_probe_at=timezone.now() + HOUR)
    deliverer.process_backlog()
    assert kinds() == ["unreachable"]


def test_a_gateway_that_took_another_push_of_the_batch_is_not_away():
    replies = iter([UNAVAILABLE, DELIVERED, UNAVAILABLE])
    for _ in range(3):
        make_due()
    deliverer = DeliveryProcess(RecordingGateway(lambda _: next(replies)))
    deliverer.process_batch()
    while not deliverer.delivery.are_all_done():
        deliverer.wait()
    deliverer.process_batch()
    assert kinds() == []


def test_other_gateways_go_on(gateway):
    make_halt("unreachable", gateway="other", next_probe_at=timezone.now() + HOUR)
    waiting = make_due(route=make_registration(route=make_route(gateway="other")).route)
    other = make_due()
    gateway.answer = lambda _: DELIVERED
    DeliveryProcess(gateway).process_backlog()
    assert (fresh(waiting).state, fresh(other).state) == (State.PENDING, State.DELIVERED)


def test_halts_cover_the_same_queues_in_python_and_in_sql():
    """The condition exists twice: in Python for workers, and in SQL for the search for work."""
    other_app, other_gateway = AppKey(1, "another.app"), QueueKey("other", 1, APP, is_proven=True)
    prove(other_app)
    queues.create([other_gateway, QueueKey("gorush", 1, None, is_proven=False)])
    for begin in BEGIN.values():
        begin()
        in_sql = {pk for (pk,) in queues.fetch(queues.OPEN_QUEUES)}
        assert in_sql == set(queues.load().open_ids)
        Halt.objects.all().delete()
