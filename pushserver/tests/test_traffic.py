import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from notifications.models import Attempt, Notification, NotificationRequest
from pushserver.history import traffic
from pushserver.models import AttemptMinute, BridgeMinute, TrafficMinute
from tests import factories
from tests.statements import statements
from waku_bridge.models import InboundEnvelope, OutboundReply

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
pytestmark = pytest.mark.django_db


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def count_all(now: datetime) -> int:
    return sum(traffic.count_owed(now=now))


def test_a_minute_holds_what_began_in_it_and_nothing_of_its_neighbours() -> None:
    for at in (NOON - ms(1), NOON, NOON + ms(59_999), NOON + MINUTE):
        factories.make_request(at=at)
        factories.make_reply(at=at, published_at=at + ms(5))
        factories.make_attempt(factories.make_notification(request=factories.make_request(at=NOON - MINUTE), at=at))

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.begin_at, found.request_count, found.reply_count) == (NOON, 2, 2)


def test_dispatch_takes_from_the_request_to_the_first_push() -> None:
    for number in range(1, 101):
        notification = factories.make_notification(at=NOON)
        factories.make_attempt(notification, started_at=NOON + ms(number))
        factories.make_attempt(notification, number=2, started_at=NOON + ms(40_000))

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.dispatch_p50_ms, found.dispatch_p95_ms) == (50, 95)


def test_pushes_of_xmpp_are_requests_and_counted_apart() -> None:
    for bridge in ("waku", "xmpp", "xmpp"):
        factories.make_request(at=NOON, bridge=bridge)

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    by_bridge = BridgeMinute.objects.order_by("bridge").values_list("bridge", "request_count", "reply_count")
    assert (found.request_count, list(by_bridge)) == (3, [("waku", 1, 0), ("xmpp", 2, 0)])


def test_a_push_that_xmpp_schedules_for_later_is_no_slow_dispatch() -> None:
    factories.make_attempt(factories.make_notification(at=NOON), started_at=NOON + ms(50))
    planned = factories.make_notification(at=NOON, grade="normal", public_key_hash=b"")
    factories.make_attempt(planned, started_at=NOON + ms(5000))

    traffic.count(NOON, now=NOON + MINUTE)

    assert TrafficMinute.objects.get().dispatch_p95_ms == 50


def test_a_reply_takes_from_reading_the_envelope_to_the_node_that_took_it() -> None:
    for number in range(1, 101):
        envelope = factories.make_envelope(at=NOON)
        factories.make_reply(envelope_hash=envelope.hash, at=NOON + ms(1), published_at=NOON + ms(number))
    again = factories.make_envelope(at=NOON)
    factories.make_reply(envelope_hash=again.hash, at=NOON, published_at=NOON + MINUTE, repeat_count=1)
    factories.make_reply(at=NOON, published_at=NOON + MINUTE)  # of an envelope that was deleted
    factories.make_reply(at=NOON)  # no node has taken it

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.reply_count, found.reply_p50_ms, found.reply_p95_ms) == (102, 50, 95)


def rows_read_under_way() -> int:
    """Return how many rows of open notifications this transaction has read, through an index or not."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables "
            "WHERE relname LIKE '%under_way'"
        )
        return int(cursor.fetchone()[0])


def test_each_row_is_read_once_though_the_tables_were_analyzed_while_they_were_empty() -> None:
    """PostgreSQL still estimates no rows for such a table, so any index looks as good as the primary key."""

    def push_and_reply() -> None:
        factories.make_attempt(factories.make_notification(at=NOON), started_at=NOON + ms(1))
        factories.make_reply(envelope_hash=factories.make_envelope(at=NOON).hash, at=NOON, published_at=NOON + ms(1))

    push_and_reply()
    for model in (Attempt, Notification, NotificationRequest, OutboundReply, InboundEnvelope):
        model.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relname LIKE '%under_way' AND relkind = 'r'")
        for (name,) in cursor.fetchall():
            cursor.execute(f"ANALYZE {name}")
    for _ in range(200):
        push_and_reply()

    before = rows_read_under_way()
    traffic.count(NOON, now=NOON + MINUTE)

    assert rows_read_under_way() - before < 2000
    assert TrafficMinute.objects.get().dispatch_p50_ms == 1


def test_a_minute_in_which_nothing_happened_is_counted_too() -> None:
    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.request_count, found.reply_count, found.dispatch_p50_ms, found.reply_p95_ms) == (0, 0, None, None)


def test_tries_are_counted_by_outcome_and_code_once_they_are_known() -> None:
    for outcome, code, number in (("delivered", "", 3), ("transient", "unreachable", 2), (None, "", 1)):
        for _ in range(number):
            factories.make_attempt(factories.make_notification(at=NOON), outcome=outcome, code=code)

    traffic.count(NOON, now=NOON + MINUTE)

    found = AttemptMinute.objects.order_by("outcome").values_list("begin_at", "outcome", "code", "count")
    assert list(found) == [(NOON, "delivered", "", 3), (NOON, "transient", "unreachable", 2)]


def test_counting_a_minute_again_replaces_what_was_counted() -> None:
    attempt = factories.make_attempt(factories.make_notification(at=NOON), outcome="delivered")
    traffic.count(NOON, now=NOON + MINUTE)
    factories.make_attempt(attempt.notification, number=2, outcome="delivered")
    factories.make_request(at=NOON)

    traffic.count(NOON, now=NOON + 2 * MINUTE)

    assert TrafficMinute.objects.get().counted_at == NOON + 2 * MINUTE
    assert AttemptMinute.objects.get().count == 2


def test_a_try_whose_outcome_changed_is_counted_once() -> None:
    attempt = factories.make_attempt(factories.make_notification(at=NOON), outcome="ambiguous", code="worker_lost")
    traffic.count(NOON, now=NOON + MINUTE)
    Attempt.objects.filter(pk=attempt.pk).update(outcome="delivered", code="")

    traffic.count(NOON, now=NOON + 2 * MINUTE)

    assert [(row.outcome, row.count) for row in AttemptMinute.objects.all()] == [("delivered", 1)]


@pytest.mark.django_db(transaction=True)
def test_two_processes_that_count_a_minute_at_once_count_it_once() -> None:
    factories.make_attempt(factories.make_notification(at=NOON), outcome="delivered")
    start = threading.Barrier(2, timeout=10)

    def work() -> None:
        start.wait()
        traffic.count(NOON, now=NOON + MINUTE)
        connection.close()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work) for _ in range(2)]:
            done.result(30)

    assert AttemptMinute.objects.get().count == 1


def test_nothing_is_counted_of_the_time_before_the_server_was_there() -> None:
    """A chart would show zeros for that time, as if there had been no requests."""
    assert count_all(NOON) == 1
    assert count_all(NOON + MINUTE) == 1
    assert TrafficMinute.objects.earliest("begin_at").begin_at == NOON - MINUTE


def test_each_minute_is_counted_when_it_is_over_and_once_more_when_its_pushes_are() -> None:
    factories.make_request(at=NOON - timedelta(days=1))
    assert count_all(NOON) == 60
    assert count_all(NOON + ms(10_000)) == 0
    assert count_all(NOON + ms(30_000)) == 1  # 90 seconds after the minute before the last one
    assert count_all(NOON + ms(60_000)) == 1
    assert count_all(NOON + ms(61_000)) == 0
    assert not TrafficMinute.objects.filter(begin_at__gt=NOON).exists()


def test_the_first_request_is_looked_for_until_an_hour_was_counted() -> None:
    """An old snapshot makes that query slow."""
    first = 'SELECT "notifications_notificationrequest"."received_at"'
    factories.make_request(at=NOON - timedelta(days=1))
    looked_for = []
    for now in (NOON, NOON + MINUTE):
        with statements() as sent:
            assert count_all(now)
        looked_for.append(any(first in statement for statement in sent))
    assert looked_for == [True, False]


def test_after_a_pause_the_newest_minute_is_counted_first() -> None:
    next(traffic.count_owed(now=NOON))

    assert TrafficMinute.objects.get().begin_at == NOON - MINUTE


def test_minutes_are_forgotten_after_a_day() -> None:
    factories.make_attempt(factories.make_notification(at=NOON - MINUTE), outcome="delivered")
    count_all(NOON)

    count_all(NOON + traffic.KEPT)

    assert not TrafficMinute.objects.filter(begin_at__lt=NOON).exists()
    assert not AttemptMinute.objects.exists()
