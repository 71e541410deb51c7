"""Tests of claims from queues: as many as there is capacity for from each open queue, without reading any other."""

import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from kit.batches.batch import Batch
from kit.db.base import fetch
from kit.db.sessions import BATCH_WORKER, set_all
from notifications.messages import UNREACHABLE, AppKey, Outcome, QueueKey, Result
from notifications.models import Halt, Notification, OpenNotification
from notifications.queues import breakers, halts, queues
from notifications.queues import claim as claiming
from notifications.queues.capacity import ConcurrencyLimits
from notifications.queues.claim import QUEUES_AT_ONCE, claim
from pushserver.console.health import stored
from registrations.models import Route
from tests.rig.delivering import (
    APP,
    LONG_AGO,
    NOW,
    DeliveryProcess,
    RecordingGateway,
    answered,
    claimed,
    fresh,
    make_due,
    make_due_to_app,
    prove,
    take,
)
from tests.rig.logs import capture_logs
from tests.rig.rows import (
    make_answered_request,
    make_attempt,
    make_halt,
    make_notification,
    make_registration,
    make_route,
)
from tests.rig.statements import other_session, refuse

APPLE, GOOGLE = AppKey(1, APP), AppKey(2, "")
PROVEN, UNPROVEN = (QueueKey("gorush", *APPLE, is_proven=is_proven) for is_proven in (True, False))
SHARED = QueueKey("gorush", 1, None, is_proven=False)
State = Notification.State
SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db


def number_of(key):
    return queues.load().id_of(key)


def queue_of(notification):
    queue_id = fresh(notification).queue_id
    return next((row.key for row in queues.load().rows.values() if row.id == queue_id), None)


def fill(queue_id, count):
    """Store ``count`` waiting notifications for a few addresses, each due a little after the one before."""
    routes = [make_registration(route=make_route(token_type=1, app_topic=APP)).route_id for _ in range(3)]
    rows = f"""
        INSERT INTO notifications_opennotification
            (request_id, position, public_key_hash, installation_id, type, state, route_id, queue_id, due_at,
             created_at, expires_at, payload_dropped, attempt_count, ambiguous_count, route_generation)
        SELECT %s, 0, '\\x00', '', 1, 'pending', (%s::bigint[])[1 + n %% 3], %s, %s::timestamptz + n * interval '1 ms',
            now(), '2100-01-01', FALSE, 0, 0, 1
        FROM generate_series(1, {count}) AS n
    """
    with connection.cursor() as cursor:
        cursor.execute(rows, [make_answered_request().pk, routes, queue_id, LONG_AGO])


# Which queue ----------------------------------------------------------------------------------------------------------


def test_notifications_are_sorted_into_queues_by_app_and_proof():
    prove(APPLE)
    phone = make_route(token_type=1, app_topic=APP, last_success_at=LONG_AGO)
    rows = [make_due(route=make_registration(route=phone).route), make_due_to_app(), make_due_to_app("made.up")]
    assert len(claimed(*rows)) == 3  # sent at once, also where the queue has no number yet
    assert [queue_of(row) for row in rows] == [PROVEN, UNPROVEN, None]
    OpenNotification.objects.update(state="retrying", due_at=LONG_AGO)
    take(limits=ConcurrencyLimits(0))
    assert [queue_of(row) for row in rows] == [PROVEN, UNPROVEN, SHARED]


def test_a_row_whose_address_changed_is_moved_when_it_is_claimed():
    """It was stored for a proven address. Then the phone registered another token, and then one of another app."""
    prove(APPLE, AppKey(1, "another.app"))
    route = make_registration(route=make_route(token_type=1, app_topic=APP, last_success_at=LONG_AGO)).route
    waiting = make_due(route=route, queue_id=number_of(PROVEN))
    full = ConcurrencyLimits(0)
    for change, key in (
        ({"delivered_digest": b"of the token before"}, UNPROVEN),
        ({"app_topic": "another.app"}, UNPROVEN._replace(app_topic="another.app")),
        ({"app_topic": "made.up"}, SHARED),
    ):
        queues.create([SHARED])
        Route.objects.filter(pk=route.pk).update(**change)
        limits = ConcurrencyLimits(1)
        while limits.enter(claiming.Slot(number_of(key))):
            pass  # there is no capacity where it belongs
        claim(Batch(10, NOW), limits)
        assert queue_of(waiting) == key
    assert claim(Batch(10, NOW), full).claims == []
    assert len(take()) == 1


def test_after_its_first_delivery_an_app_has_queues_of_its_own():
    first, second = make_due_to_app(), make_due_to_app()
    answered(Result(Outcome.DELIVERED), first)
    claim(Batch(10, NOW), ConcurrencyLimits(0))
    assert queues.load().id_of(UNPROVEN) == 0
    take(limits=ConcurrencyLimits(0))
    assert queue_of(second) == UNPROVEN


def test_made_up_apps_make_no_queues():
    for number in range(20):
        make_due_to_app(f"made.up.{number}")
    take()
    assert set(queues.load().rows) == {SHARED}


# What a claim reads ---------------------------------------------------------------------------------------------------


def test_a_claim_takes_from_a_few_queues_and_the_next_ones_take_from_the_others():
    apps = [AppKey(1, f"app.{number}") for number in range(QUEUES_AT_ONCE + 8)]
    prove(*apps)
    for app in apps:
        make_due_to_app(app.app_topic, queue_id=number_of(QueueKey("gorush", *app, is_proven=False)))
    first = claim(Batch(1000, NOW), ConcurrencyLimits(100))
    second = claim(Batch(1000, NOW), ConcurrencyLimits(100))
    assert [(len(each.claims), each.is_more_left) for each in (first, second)] == [(12, True), (8, False)]


def test_two_workers_take_different_rows_of_the_same_queue(transactional_db):
    prove(APPLE)
    fill(number_of(UNPROVEN), 20)
    with other_session() as other:
        other.execute(
            "SELECT FROM notifications_opennotification WHERE queue_id > 0 ORDER BY due_at LIMIT 5 FOR UPDATE"
        )
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        assert len(take(limit=100)) == 15
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


def test_a_claim_reads_by_the_index_and_no_more_than_it_takes():
    """A thousand rows wait behind a halt, and two thousand in an open queue with capacity for five."""
    prove(APPLE, GOOGLE)
    fill(number_of(PROVEN), 1000)
    fill(number_of(UNPROVEN), 2000)
    budgets = {number_of(UNPROVEN): 5, number_of(QueueKey("gorush", *GOOGLE, is_proven=True)): 5, 0: 200}
    read = rows_read(claiming._TAKE_DUE, {
        "now": NOW, "nothing_before": LONG_AGO, "noted_since": NOW, "limit": 200, "queues_at_once": QUEUES_AT_ONCE,
        "queue_ids": list(budgets), "budgets": list(budgets.values()),
    })  # fmt: skip
    assert read["notifications_notification"] <= 6  # the head that is looked up, and five
    assert set(read["indexes"]) <= {"notification_due", "registrations_route_pkey"}


@pytest.mark.parametrize("sql", [queues.IS_DUE, queues.IS_EXPIRED])
def test_the_search_for_work_reads_nothing_behind_a_halt(sql):
    prove(APPLE)
    fill(number_of(UNPROVEN), 1000)
    halts.begin(halts.Kind.PAUSED, APPLE, by="ann", reason="x", now=NOW)
    assert (
        rows_read(f"SELECT EXISTS ({sql})", {"now": NOW, "nothing_before": LONG_AGO})["notifications_notification"] <= 1
    )


def test_a_failure_among_answers_reads_no_notification_of_an_answer():
    """An app that works has some failures at any time, and each batch with one looks at the newest sends."""
    prove(APPLE)
    for n in range(50):
        make_attempt(token_type=1, app_topic=APP, started_at=NOW - n * SECOND, outcome="delivered")
    make_attempt(token_type=1, app_topic=APP, started_at=NOW, outcome="transient", ended_at=NOW + SECOND)
    values = {**APPLE._asdict(), "start": NOW - 300 * SECOND, "looked_through": 500, "limit": 100}
    assert rows_read(breakers._FAILED_IN_A_ROW, values)["notifications_notification"] <= 2


def test_failures_of_an_app_without_an_answer_are_read_once():
    """Its breaker does not trip when all are for one sender, as on a server of one XMPP domain."""
    prove(APPLE)
    for n in range(50):
        make_attempt(token_type=1, app_topic=APP, started_at=NOW - n * SECOND, outcome="transient")
    assert rows_read(stored._FAILING, {"since": NOW - 3600 * SECOND})["notifications_attempt"] <= 2 * 50


def rows_read(sql, parameters):
    """Return the number of rows read of each table, planned as in a worker, and the indexes of the models used.

    The statistics are made here: autovacuum may have made others in the middle of other tests.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "ANALYZE notifications_opennotification, notifications_endednotification, notifications_queue,"
            " registrations_route, notifications_endedattempt"
        )
        cursor.execute(f"SELECT {set_all(BATCH_WORKER)}")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('b::', 's::')}", parameters)
        [(found,)] = cursor.fetchall()
        cursor.execute("RESET ALL")
    plan = found if isinstance(found, list) else json.loads(found)
    names = dict(fetch(INDEXES_OF_PARTITIONS))
    read = {"notifications_notification": 0, "notifications_attempt": 0, "indexes": []}
    nodes = [plan[0]["Plan"]]
    for node in nodes:
        nodes += node.get("Plans", [])
        for table in ("notifications_notification", "notifications_attempt"):
            if re.match(re.sub("_", "_(?:open|ended)", table), node.get("Relation Name", "")):
                removed = node.get("Rows Removed by Filter", 0)
                read[table] += (node["Actual Rows"] + removed) * node["Actual Loops"]
        if "Index Name" in node:
            read["indexes"].append(names.get(node["Index Name"], node["Index Name"]))
    return read


INDEXES_OF_PARTITIONS = """
    SELECT child.relname, parent.relname FROM pg_inherits
    JOIN pg_class AS child ON child.oid = inhrelid JOIN pg_class AS parent ON parent.oid = inhparent
"""


# Resuming -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["unreachable", "paused"])
def test_the_first_batch_after_a_halt_sends_and_no_other_worker_waits(transactional_db, kind, count):
    """The test fails for a statement of 2 s, and for one of another worker that waits 0.1 s for a lock."""
    prove(APPLE, GOOGLE)
    fill(number_of(UNPROVEN), count)
    halt = make_halt(kind, None if kind == "unreachable" else APPLE, gateway="gorush" if kind == "unreachable" else "")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE notifications_opennotification")
        cursor.execute("SET statement_timeout = '2s'; SET lock_timeout = '100ms'")
    try:
        deliverer, other = DeliveryProcess(limit=40), DeliveryProcess(limit=40)
        deliverer.process_batch()
        assert deliverer.gateway.pushes == []
        _end(halt)
        deliverer.process_batch()
        assert Notification.objects.filter(state=State.IN_FLIGHT).count() == 20  # half of what the limit allows
        other.process_batch()
        deliverer.process_until(lambda: len(deliverer.gateway.pushes) >= 20)
        other.process_until(lambda: len(other.gateway.pushes) >= 20)
        assert halts.begin(halts.Kind.PAUSED, GOOGLE, by="ann", reason="x", now=timezone.now())
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout; RESET lock_timeout")


def _end(halt):
    assert (
        halts.end(halts.Kind.UNREACHABLE, "gorush", now=NOW)
        if halt.kind == "unreachable"
        else halts.end(halts.Kind.PAUSED, APPLE, by="ann", now=NOW)
    )


def test_no_worker_waits_for_a_session_that_begins_or_ends_a_halt(transactional_db):
    prove(APPLE, GOOGLE)
    make_halt("paused", APPLE)
    waiting, other_app = make_due_to_app(), make_due()
    deliverer = DeliveryProcess()
    with other_session() as operator, connection.cursor() as cursor:
        operator.execute("DELETE FROM notifications_halt")
        operator.execute("INSERT INTO notifications_halt (kind, gateway, token_type, app_topic, since, reason, by)"
                         " VALUES ('paused', '', 2, '', now(), '', '')")  # fmt: skip
        cursor.execute("SET lock_timeout = '100ms'")
        deliverer.process_until(lambda: fresh(other_app).state == State.DELIVERED)
        cursor.execute("RESET lock_timeout")
        assert fresh(waiting).state == State.PENDING
        operator.commit()
    deliverer.process_until(lambda: fresh(waiting).state == State.DELIVERED)


def test_a_gateway_that_comes_back_is_sent_to_after_one_probe(transactional_db):
    prove(APPLE)
    fill(number_of(UNPROVEN), 200)
    make_halt("unreachable", gateway="gorush", next_probe_at=timezone.now() - SECOND)
    answers = iter([Result(Outcome.TRANSIENT, UNREACHABLE, is_unreached=True)])
    deliverer = DeliveryProcess(RecordingGateway(lambda _: next(answers, Result(Outcome.DELIVERED))), limit=40)
    deliverer.process_backlog()
    assert (len(deliverer.gateway.pushes), Halt.objects.in_force().count()) == (1, 1)
    Halt.objects.in_force().update(next_probe_at=timezone.now() - SECOND)
    deliverer.process_until(lambda: len(deliverer.gateway.pushes) > 100)
    assert Halt.objects.in_force().count() == 0


# A backlog ------------------------------------------------------------------------------------------------------------


def test_a_backlog_leaves_half_of_the_limit_to_fresh_notifications():
    prove(APPLE)
    fill(number_of(UNPROVEN), 50)
    limits = ConcurrencyLimits(10)
    assert len(take(limits=limits)) == 5
    fresh_ones = [make_due_to_app().pk for _ in range(6)]  # stored as by a bridge that sorts nothing
    assert {held.notification_id for held in take(limits=limits)} < set(fresh_ones)
    assert Notification.objects.filter(state=State.IN_FLIGHT).count() == 10


# What cannot be claimed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["an open queue", "a queue that is probed"])
def test_a_notification_that_cannot_be_claimed_is_postponed_in_every_queue(kind):
    """The attempt's number does not fit into its column. The row is the head of one of several queues."""
    apps = [AppKey(1, f"app.{number}") for number in range(6)]
    prove(*apps)
    numbers = [number_of(QueueKey("gorush", *app, is_proven=False)) for app in apps]
    rows = [make_due_to_app(app.app_topic, queue_id=pk) for app, pk in zip(apps, numbers, strict=True)]
    broken, others = rows[3], [*rows[:3], *rows[4:]]
    OpenNotification.objects.filter(pk=broken.pk).update(attempt_count=2_147_483_647)
    if kind == "a queue that is probed":
        make_halt("tripped", apps[3], next_probe_at=timezone.now() - SECOND)
    deliverer = DeliveryProcess()
    later = timezone.now() + 30 * SECOND
    deliverer.process_until(
        lambda: all(fresh(row).state == State.DELIVERED for row in others) and fresh(broken).due_at > later
    )
    assert all(fresh(row).attempt_count == 1 for row in others)


# Rows that the database refuses: halving finds them, and they stop no other row ---------------------------------------


# PostgreSQL raises this itself when a value is too large for an index (SQLSTATE 54000).
@pytest.mark.parametrize("has_expired", [False, True])
def test_a_lost_push_that_cannot_be_taken_over_stops_no_other(has_expired):
    now = timezone.now()
    expires_at = LONG_AGO if has_expired else now + timedelta(days=1)
    rows = [make_notification(state=State.IN_FLIGHT, due_at=LONG_AGO, expires_at=expires_at) for _ in range(20)]
    bad = rows[0]
    refuse("notifications_endedattempt", "INSERT", f"NEW.notification_id = {bad.pk}")
    deliverer = DeliveryProcess()
    deliverer.process_until(lambda: not Notification.objects.exclude(pk=bad.pk).filter(state=State.IN_FLIGHT).exists())
    assert fresh(bad).due_at > now


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_waiting_push_that_cannot_be_closed_stops_no_other_and_is_left_for_a_while(has_expired):
    now = timezone.now()
    expires_at = LONG_AGO if has_expired else now + timedelta(days=1)
    rows = [make_notification(at=LONG_AGO, expires_at=expires_at) for _ in range(20)]
    bad = rows[0]
    refuse("notifications_endednotification", "INSERT", f"NEW.id = {bad.pk}")
    deliverer = DeliveryProcess()
    deliverer.process_until(lambda: OpenNotification.objects.count() == 1 and fresh(bad).due_at > now)
    for _ in range(3):
        with capture_logs() as logs:
            deliverer.process_batch()
        assert [entry["event"] for entry in logs if entry["event"] in {"batch_split", "step_failed"}] == []
