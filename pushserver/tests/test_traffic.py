import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from time import sleep
from typing import Any

import pytest
from aiohttp.test_utils import unused_port
from django.db import connection
from django.utils import timezone

from kit.db.base import fetch
from notifications.acceptance import storing
from notifications.gateways.gorush.client import open_gateway
from notifications.metrics import DISPATCH_SECONDS
from notifications.models import Attempt, EndedAttempt, Notification, NotificationRequest, OpenNotification
from pushserver.console.health import traffic
from pushserver.console.health.history import BUCKETS_PER_DOUBLING, percentile
from pushserver.console.models import Count, TrafficMinute
from tests.rig import rows
from tests.rig.conversation import push, put, registration, request, say
from tests.rig.delivering import Process
from tests.rig.peers import serve
from tests.rig.statements import statements
from waku_bridge.models import InboundEnvelope, OutboundReply

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
pytestmark = pytest.mark.django_db
# Half the width of a bucket, as a share of the value.
WIDTH = 2 ** (0.5 / BUCKETS_PER_DOUBLING) - 1
ATTEMPTS = Count.objects.filter(figure="attempts")


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def waited(share: float) -> float | None:
    """Return a percentile of the waits of everything that was counted."""
    counted = Count.objects.filter(figure="waits").values_list("code", "count")
    return percentile({int(bucket): number for bucket, number in counted}, share)


def count_all(now: datetime) -> int:
    return sum(traffic.count_owed(now=now))


def test_a_minute_holds_what_began_in_it_by_bridge_and_nothing_of_its_neighbours() -> None:
    """A request that notified nobody is counted with its answer."""
    for number, at in enumerate((NOON - ms(1), NOON, NOON + ms(59_999), NOON + MINUTE)):
        rows.make_request(at=at)
        storing.store_refused("waku", [(b"%d" % number, b"")], now=at)
        for is_discarded in (False, True):
            envelope = rows.make_envelope(at=at)
            rows.make_reply(envelope_hash=envelope.hash, at=at, published_at=at + ms(5), is_discarded=is_discarded)
        rows.make_request(at=at, bridge="xmpp")
        rows.make_attempt(rows.make_notification(request=rows.make_request(at=NOON - MINUTE), at=at))

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.begin_at, found.request_count, found.reply_count) == (NOON, 6, 4)
    by_bridge = Count.objects.filter(figure__in=["requests", "replies"]).values_list("figure", "subject", "count")
    assert set(by_bridge) == {("requests", "waku", 4), ("replies", "waku", 4), ("requests", "xmpp", 2)}


def test_dispatch_takes_from_the_request_to_the_first_push() -> None:
    for number in range(1, 101):
        notification = rows.make_notification(at=NOON)
        rows.make_attempt(notification, started_at=NOON + ms(number), outcome="transient")
        rows.make_attempt(notification, number=2, started_at=NOON + ms(40_000), outcome="delivered")

    traffic.count(NOON, now=NOON + MINUTE)

    assert waited(0.5) == pytest.approx(50, rel=WIDTH)
    assert waited(0.95) == pytest.approx(95, rel=WIDTH)
    assert waited(0.99) == pytest.approx(99, rel=WIDTH)


def test_a_push_counts_when_its_result_was_known_and_its_wait_when_its_post_began() -> None:
    """In a minute in which the gateway stands still nothing is delivered, however much was sent."""
    times = {"began_at": NOON + ms(1), "ended_at": NOON + MINUTE + ms(5000), "waited_ms": 7}
    rows.make_attempt(rows.make_notification(at=NOON), outcome="delivered", **times)
    later = NOON + MINUTE

    for begin_at in (NOON, later):
        traffic.count(begin_at, now=later + MINUTE)

    assert list(ATTEMPTS.values_list("begin_at", "outcome", "count")) == [(later, "delivered", 1)]
    assert list(Count.objects.filter(figure="ends").values_list("begin_at", "outcome", "count").order_by("pk")) == [
        (NOON, "delivered", 0),
        (later, "delivered", 1),
    ]
    [counted] = Count.objects.filter(figure="waits")
    assert (counted.begin_at, counted.count, waited(0.5)) == (NOON, 1, pytest.approx(7, rel=WIDTH))


# From an envelope to gorush, over HTTP --------------------------------------------------------------------------------

WAITED = timedelta(seconds=3)
TOOK = timedelta(seconds=0.2)


class Gorush(BaseHTTPRequestHandler):
    """A gorush that takes its time, and then accepts every push."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        sleep(TOOK.total_seconds())
        body = json.dumps({"success": "ok", "counts": 1, "logs": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def pushing_to(settings: Any, port: int, limit: int = 128) -> Process:
    """Return a worker process that sends to gorush at this port of this host."""
    settings.GORUSH_URLS = [f"http://127.0.0.1:{port}"]
    return Process(open_gateway(), limit=limit)


def chart() -> float | None:
    """Count the minute of the first push, and return how long that waited in milliseconds."""
    first = Attempt.objects.exclude(waited_ms=None).get()
    assert first.began_at
    begin_at = first.began_at.replace(second=0, microsecond=0)
    traffic.count(begin_at, now=begin_at + 3 * MINUTE)
    return waited(0.5)


@pytest.mark.django_db(transaction=True)
def test_the_first_push_is_measured_from_the_arrival_of_its_envelope_to_its_post(settings: Any) -> None:
    say(registration())
    observed = DISPATCH_SECONDS._sum.get()
    with serve(Gorush) as server:
        put(request(push()), now=timezone.now() - WAITED)
        pushing_to(settings, server.server_port).process_backlog()

    attempt = Attempt.objects.get()
    assert attempt.outcome == "delivered"
    assert attempt.waited_ms is not None
    assert timedelta(milliseconds=attempt.waited_ms) >= WAITED
    assert attempt.began_at
    assert attempt.ended_at
    assert attempt.started_at <= attempt.began_at
    assert attempt.ended_at - attempt.began_at >= 0.9 * TOOK  # the clock is set by each poll
    assert DISPATCH_SECONDS._sum.get() - observed == pytest.approx(attempt.waited_ms / 1000)
    assert chart() == pytest.approx(attempt.waited_ms, rel=WIDTH)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_away", [False, True])
def test_a_push_that_waits_for_capacity_or_for_gorush_is_measured_when_it_leaves(settings: Any, is_away: bool) -> None:
    say(registration())
    put(request(push()), now=timezone.now() - WAITED)
    process = pushing_to(settings, unused_port(), limit=128 if is_away else 0)
    process.process_batch()
    process.process_until(lambda: not process.delivery.under_way)
    assert not Attempt.objects.exclude(began_at=None, waited_ms=None).exists()
    with serve(Gorush) as server:
        OpenNotification.objects.update(due_at=timezone.now())
        process = pushing_to(settings, server.server_port)
        process.process_until(lambda: Notification.objects.filter(state="delivered").exists())

    waited_ms = chart()
    assert waited_ms is not None
    assert timedelta(milliseconds=waited_ms) >= WAITED * (1 - WIDTH)


# Replies and neighbours -----------------------------------------------------------------------------------------------


def test_a_reply_takes_from_reading_the_envelope_to_the_node_that_took_it() -> None:
    for number in range(1, 101):
        envelope = rows.make_envelope(at=NOON)
        rows.make_reply(envelope_hash=envelope.hash, at=NOON + ms(1), published_at=NOON + ms(number))
    again = rows.make_envelope(at=NOON)
    rows.make_reply(envelope_hash=again.hash, at=NOON, published_at=NOON + MINUTE, repeat_count=1)
    rows.make_reply(envelope_hash=rows.make_envelope(at=NOON).hash, at=NOON)  # no node has taken it

    traffic.count(NOON, now=NOON + MINUTE)

    found = TrafficMinute.objects.get()
    assert (found.reply_count, found.reply_p50_ms, found.reply_p95_ms) == (101, 50, 95)


def open_rows_read() -> int:
    """Return how many rows of open notifications this transaction has read, through an index or not."""
    sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
    [(read,)] = fetch(f"{sql} WHERE relname ~ '_open'")
    return int(read)


def test_each_row_is_read_once_though_the_tables_were_analyzed_while_they_were_empty() -> None:
    """PostgreSQL still estimates no rows for such a table, so any index looks as good as the primary key."""

    def push_and_reply() -> None:
        rows.make_attempt(rows.make_notification(at=NOON), started_at=NOON + ms(1), outcome="delivered")
        rows.make_reply(envelope_hash=rows.make_envelope(at=NOON).hash, at=NOON, published_at=NOON + ms(1))

    push_and_reply()
    for model in (Attempt, Notification, NotificationRequest, OutboundReply, InboundEnvelope):
        rows.delete_all(model)
    for (name,) in fetch("SELECT relname FROM pg_class WHERE relname ~ '_open' AND relkind = 'r'"):
        fetch(f"ANALYZE {name}")
    for _ in range(200):
        push_and_reply()

    before = open_rows_read()
    traffic.count(NOON, now=NOON + MINUTE)

    assert open_rows_read() - before < 2000
    assert waited(0.5) == pytest.approx(1, rel=WIDTH)


def test_tries_are_counted_by_outcome_and_code_once_they_are_known() -> None:
    for outcome, code in [*[("delivered", "")] * 3, *[("transient", "unreachable")] * 2, (None, "")]:
        rows.make_attempt(rows.make_notification(at=NOON), outcome=outcome, code=code)

    traffic.count(NOON, now=NOON + MINUTE)

    found = ATTEMPTS.order_by("outcome").values_list("begin_at", "outcome", "code", "count")
    assert list(found) == [(NOON, "delivered", "", 3), (NOON, "transient", "unreachable", 2)]


def test_counting_a_minute_again_replaces_what_was_counted() -> None:
    attempt = rows.make_attempt(rows.make_notification(at=NOON), outcome="ambiguous", code="worker_lost")
    traffic.count(NOON, now=NOON + MINUTE)
    EndedAttempt.objects.filter(pk=attempt.pk).update(outcome="delivered", code="")
    rows.make_attempt(attempt.notification, number=2, outcome="delivered")

    traffic.count(NOON, now=NOON + 2 * MINUTE)

    assert TrafficMinute.objects.get().counted_at == NOON + 2 * MINUTE
    assert [(row.outcome, row.count) for row in ATTEMPTS.all()] == [("delivered", 2)]


@pytest.mark.django_db(transaction=True)
def test_two_processes_that_count_a_minute_at_once_count_it_once() -> None:
    rows.make_attempt(rows.make_notification(at=NOON), outcome="delivered")
    start = threading.Barrier(2, timeout=10)

    def work() -> None:
        start.wait()
        traffic.count(NOON, now=NOON + MINUTE)
        connection.close()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work) for _ in range(2)]:
            done.result(30)

    assert ATTEMPTS.get().count == 1


def test_nothing_is_counted_of_the_time_before_the_server_was_there_and_after_a_pause_the_newest_first() -> None:
    """A chart would show zeros for that time, as if there had been no requests."""
    assert [count_all(NOON), count_all(NOON + MINUTE)] == [1, 1]
    found = TrafficMinute.objects.earliest("begin_at")
    assert found.begin_at == NOON - MINUTE
    assert (found.request_count, found.reply_count, waited(0.5), found.reply_p95_ms) == (0, 0, None, None)
    next(traffic.count_owed(now=NOON + 9 * MINUTE))
    assert TrafficMinute.objects.latest("begin_at").begin_at == NOON + 8 * MINUTE


def test_each_minute_is_counted_when_it_is_over_and_once_more_when_its_pushes_are() -> None:
    rows.make_request(at=NOON - timedelta(days=1))
    assert count_all(NOON) == 60
    assert count_all(NOON + ms(10_000)) == 0
    assert count_all(NOON + ms(30_000)) == 1  # 90 seconds after the minute before the last one
    assert count_all(NOON + ms(60_000)) == 1
    assert count_all(NOON + ms(61_000)) == 0
    assert not TrafficMinute.objects.filter(begin_at__gt=NOON).exists()


def test_the_first_request_is_looked_for_until_an_hour_was_counted() -> None:
    """An old snapshot makes that query slow."""
    first = 'SELECT "notifications_notificationrequest"."received_at"'
    rows.make_request(at=NOON - timedelta(days=1))
    looked_for = []
    for now in (NOON, NOON + MINUTE):
        with statements() as sent:
            assert count_all(now)
        looked_for.append(any(first in statement for statement in sent))
    assert looked_for == [True, False]


def test_minutes_are_forgotten_after_a_day() -> None:
    rows.make_attempt(rows.make_notification(at=NOON - MINUTE), outcome="delivered")
    for now in (NOON, NOON + traffic.KEPT):
        count_all(now)

    assert not TrafficMinute.objects.filter(begin_at__lt=NOON).exists()
    assert not ATTEMPTS.exists()
