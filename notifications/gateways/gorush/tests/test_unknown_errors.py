"""Tests of counting unknown errors: none lost, none counted twice, and neither memory nor table grows without limit."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from django.db import OperationalError, connection

from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.gateways.gorush.rules import table
from notifications.gateways.gorush.rules.table import UnknownErrors, count_unknown

IOS, ANDROID = 1, 2
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def stored():
    return {(row.platform, row.signature): row.count for row in UnknownGatewayError.objects.all()}


@pytest.mark.django_db
def test_sums_are_written_once_per_batch(django_assert_num_queries):
    errors = UnknownErrors()
    with django_assert_num_queries(0):
        for _ in range(3):
            errors.note(IOS, "new")
        errors.note(ANDROID, "new")
    errors.record(now=NOW)
    assert stored() == {("ios", "new"): 3, ("android", "new"): 1}

    errors.note(IOS, "new")
    with django_assert_num_queries(1):
        errors.record(now=LATER)
    with django_assert_num_queries(0):
        errors.record(now=LATER)
    row = UnknownGatewayError.objects.get(platform="ios")
    assert (row.count, row.first_seen_at, row.last_seen_at) == (4, NOW, LATER)


@pytest.mark.django_db
def test_an_error_is_logged_when_it_is_seen_first():
    with structlog.testing.capture_logs() as logs:
        count_unknown("ios", "new", 2, now=NOW)
        count_unknown("ios", "new", 1, now=NOW)
    assert logs == [
        {"event": "gateway_error_unknown", "log_level": "warning", "platform": "ios", "signature": "new"},
    ]


@pytest.mark.django_db
def test_the_counts_wait_while_the_database_is_unreachable(monkeypatch):
    errors = UnknownErrors()
    errors.note(IOS, "a")
    errors.note(IOS, "b")

    def fail_at_b(platform, signature, count, *, now):
        if signature == "b":
            raise OperationalError("gone")
        count_unknown(platform, signature, count, now=now)

    monkeypatch.setattr(table, "count_unknown", fail_at_b)
    errors.record(now=NOW)
    assert stored() == {("ios", "a"): 1}

    monkeypatch.undo()
    errors.record(now=NOW)
    assert stored() == {("ios", "a"): 1, ("ios", "b"): 1}


@pytest.mark.django_db
def test_ever_new_errors_fill_neither_memory_nor_table(monkeypatch):
    monkeypatch.setattr(table, "MAX_SIGNATURES_HELD", 3)
    monkeypatch.setattr(table, "MAX_SIGNATURES_STORED", 4)
    errors = UnknownErrors()
    for minute in range(3):
        for number in range(10):
            errors.note(IOS, f"{minute} {number}")
        errors.record(now=NOW + timedelta(minutes=minute))
    assert set(stored()) == {("ios", "1 2"), ("ios", "2 0"), ("ios", "2 1"), ("ios", "2 2")}


@pytest.mark.django_db(transaction=True)
def test_workers_that_count_the_same_errors_at_once_lose_none():
    started = threading.Barrier(4)

    def work(names):
        errors = UnknownErrors()
        started.wait(10)
        for _ in range(10):
            for name in names:
                errors.note(IOS, name)
            errors.record(now=NOW)
        connection.close()

    workers = [threading.Thread(target=work, args=(names,)) for names in ("abc", "cba", "bca", "acb")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert stored() == {("ios", name): 40 for name in "abc"}


@pytest.mark.django_db
def test_threads_that_note_and_record_at_once_lose_none():
    errors = UnknownErrors()

    def note():
        for _ in range(5000):
            errors.note(IOS, "new")

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        errors.record(now=NOW)
    for thread in threads:
        thread.join(30)
    errors.record(now=NOW)
    assert stored() == {("ios", "new"): 20_000}
