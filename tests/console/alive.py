"""Healthy server for tests of the indicators: bridge, workers, config checks and canary have left good states in Redis,
and there is an hour of traffic.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from http.server import ThreadingHTTPServer
from math import sin

import pytest
from django.conf import LazySettings
from django.core.cache import cache
from django.utils import timezone

from pushserver.celery import HEARTBEAT_KEY, QUEUES
from pushserver.console.canary.waku import canary
from pushserver.console.checks.engine import Notice, NoticeCache
from pushserver.console.checks.gorush import NOTICES as GORUSH_NOTICES
from pushserver.console.checks.nodes import NOTICES as NODE_NOTICES
from pushserver.console.checks.peers import Complaint
from pushserver.console.health import asking, stored, traffic
from pushserver.console.health import indicators as server
from pushserver.console.models import Count, TrafficMinute
from pushserver.console.waku import indicators as waku
from tests.rig import rows
from tests.rig.peers import serve_gorush
from tests.rig.statements import a_batch_worker, a_bridge
from waku_bridge.reading.live import LAST_READ, LastRead

NODES = ["http://reader:secret-of-node-1@node-01.example.org:8645", "http://node-02.example.org:8645"]
LONG = 3600


@pytest.fixture
def gorush() -> Iterator[ThreadingHTTPServer]:
    with serve_gorush() as server:
        yield server


@pytest.fixture
def alive(
    db: None, settings: LazySettings, gorush: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    """Yield the gorush of a healthy server, which a test may break."""
    for kept in ("stored", "history"):
        monkeypatch.setattr(f"pushserver.console.health.{kept}.KEPT_SECONDS", 0)
    forget()
    settings.WAKU_NODES = settings.WAKU_STORE_NODES = NODES
    settings.GORUSH_URLS = [f"http://127.0.0.1:{gorush.server_port}"]
    settings.CANARY_PERIOD_SECONDS = 60
    settings.REPORTS_NIGHTLY = False
    now = timezone.now()
    for url in NODES:
        read(url)
        look_at(NODE_NOTICES, url, now)
        rows.make_watermark(node=url)
    look_at(GORUSH_NOTICES, settings.GORUSH_URLS[0], now)
    cache.set_many({HEARTBEAT_KEY.format(queue=queue): now.isoformat() for queue in QUEUES}, LONG)
    rows.make_channel()
    times = dict.fromkeys(("register", "register_answer", "query", "query_answer", "request_answer"), 40)
    canary.save(rows.make_canary_run(times=times))
    make_traffic(now)
    monkeypatch.setattr(server, "HANGS_SECONDS", LONG)  # the test's worker sends no statement
    monkeypatch.setattr(waku, "BRIDGE_RED", LONG)
    monkeypatch.setattr(waku, "BRIDGE_QUIET", LONG)
    with a_batch_worker(), a_bridge():
        yield gorush
    cache.clear()
    forget()


def forget() -> None:
    """Empty the caches, so that the next snapshot sends requests to the servers and counts again."""
    asking.RECENT.forget()
    stored.COUNTED.forget()


def read(url: str) -> None:
    replace(LAST_READ, ttl_seconds=LONG).save(LastRead(timezone.now()), url)


def look_at(watch: NoticeCache, url: str, now: datetime, *complaints: Complaint) -> None:
    watch.save(Notice(url, now, complaints, {complaint.id: now for complaint in complaints}, None))


def make_traffic(now: datetime) -> None:
    """Make the traffic of an hour in a small fleet, with some failures and no outage."""
    begins_at = traffic.minutes(now + timedelta(minutes=5))  # no gap in a test that takes a while
    minutes, attempts = [], []
    for number, begin_at in enumerate(begins_at):
        pushes = round(420 + 160 * sin(number / 9) + 35 * sin(number * 1.7))
        reply = {"reply_p50_ms": 140 + number % 11, "reply_p95_ms": 310 + 17 * (number % 6), "reply_count": pushes + 40}
        counted = {"begin_at": begin_at, "counted_at": begin_at + traffic.MINUTE, "request_count": pushes}
        minutes.append(TrafficMinute(**counted, **reply))
        counts = {("delivered", ""): pushes, ("dead", "unregistered"): 3, ("transient", "unavailable"): 1 + number % 4}
        app = "APN im.status.ethereum"
        attempts += [
            Count(figure="attempts", begin_at=begin_at, subject=app, outcome=outcome, code=code, count=count)
            for (outcome, code), count in counts.items()
        ]
        # Waits of some 40 ms, and some of some 100 ms.
        waits = {"waits": {"21": pushes - 9, "27": 7 + number % 3}, "waiting": {"": number % 4}}
        attempts += [
            Count(figure=figure, begin_at=begin_at, code=code, count=count)
            for figure, counts in waits.items()
            for code, count in counts.items()
        ]
    TrafficMinute.objects.bulk_create(minutes)
    Count.objects.bulk_create(attempts)
    Count.objects.bulk_create(
        Count(figure="ends", begin_at=begin_at, outcome=state, count=number)
        for begin_at in (*begins_at, *(begin_at - traffic.DAY for begin_at in begins_at))
        for state, number in (("delivered", 400), ("dead_token", 3))
    )
