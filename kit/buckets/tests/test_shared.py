"""Tests of shared buckets: silent spending, charges to the table, and limits that hold over the whole server."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from kit.batches.batch import Wakeup, Worker
from kit.buckets.bucket import Limit
from kit.buckets.models import SharedBucket
from kit.buckets.share import Share, own_share
from kit.buckets.shared import SharedBuckets, forget_full
from tests.delivering import other_session
from tests.statements import statements

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = (Limit(30, 10), Limit(600, 3600))


class Among(Share):
    """The share of one of ``workers`` workers."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.part = 1 / workers


def of(workers: int, capacity: int = 1000) -> SharedBuckets:
    return SharedBuckets(Among(workers), capacity)


def spend(buckets: SharedBuckets, number: int, *, key: bytes = b"key", now: datetime = NOW) -> int:
    """Take ``number`` tokens in one batch, and return how many it got."""
    with transaction.atomic():
        spending = buckets.open({key: LIMITS}, Counter({key: number}), at=now)
        got = sum(spending.take([key]) for _ in range(number))
        spending.write()
    buckets.keep()
    return got


def test_spending_within_the_silent_share_costs_no_statement() -> None:
    with statements() as sent:
        assert spend_silently(of(1), 6) == 6
        assert spend_silently(of(2), 3) == 3
        assert spend_silently(of(64), 1) == 1
    assert sent == []


def spend_silently(buckets: SharedBuckets, number: int) -> int:
    spending = buckets.open({b"key": LIMITS}, Counter({b"key": number}), at=NOW)
    got = sum(spending.take([b"key"]) for _ in range(number))
    spending.write()
    return got


@pytest.mark.django_db
def test_a_limit_holds_over_batches() -> None:
    buckets = of(1)
    assert [spend(buckets, 20) for _ in range(3)] == [20, 10, 0]
    assert spend(buckets, 20, now=NOW + timedelta(seconds=5)) == 15


@pytest.mark.django_db
def test_silently_spent_tokens_are_charged() -> None:
    buckets = of(2)
    assert [spend(buckets, 1) for _ in range(40)].count(1) == 30


@pytest.mark.django_db
def test_silently_spent_tokens_that_have_come_back_are_not_charged() -> None:
    """A recipient of a message every two minutes for a day, and then of twenty at once, gets all of them."""
    buckets = of(2)
    for minute in range(0, 24 * 60, 2):
        assert not buckets.open({b"key": LIMITS}, Counter({b"key": 1}), at=NOW + timedelta(minutes=minute))
    assert spend(buckets, 20, now=NOW + timedelta(days=1)) == 20


@pytest.mark.django_db
@pytest.mark.parametrize("workers", [2, 16])
def test_a_limit_holds_over_all_workers_and_outlives_them(workers: int) -> None:
    """All workers of an autoscaler together exceed the limit by at most a fifth, or by a token each."""
    fleet = [of(workers) for _ in range(workers)]
    got = sum(spend(worker, number) for worker in fleet * 5 for number in (1, 10))
    assert 30 <= got <= 30 + max(6, workers)
    assert sum(spend(of(workers), 20) for _ in range(workers)) <= max(6, workers)


@pytest.mark.django_db
def test_a_share_that_changes_gives_no_token_twice() -> None:
    share = Among(1)
    buckets = SharedBuckets(share)
    got = 0
    for workers in (1, 4, 1, 4, 1):
        share.part = 1 / workers
        got += sum(spend(buckets, number) for number in (1, 2, 5, 10))
    assert got == 30


@pytest.mark.django_db(transaction=True)
def test_a_batch_does_not_wait_for_a_bucket_that_another_process_has_locked() -> None:
    held, done = threading.Event(), threading.Event()
    got: list[int] = []

    def work() -> None:
        with transaction.atomic():
            spending = of(2).open({b"key": LIMITS}, Counter({b"key": 40}), at=NOW)
            got.append(sum(spending.take([b"key"]) for _ in range(40)))
            held.set()
            done.wait(20)
            spending.write()
        connection.close()

    SharedBucket.objects.create(key=b"key", burst_full_at=0, long_full_at=0)
    other = threading.Thread(target=work)
    other.start()
    held.wait(20)
    got.append(spend(of(2), 40))
    done.set()
    other.join(20)
    assert got == [30, 6]
    assert spend(of(2), 40) <= 3


@pytest.mark.django_db
def test_a_batch_that_was_rolled_back_spent_nothing() -> None:
    buckets = of(1)
    for number in (6, 40, 6, 40):
        with transaction.atomic():
            spending = buckets.open({b"key": LIMITS}, Counter({b"key": number}), at=NOW)
            sum(spending.take([b"key"]) for _ in range(number))
            spending.write()
            transaction.set_rollback(True)
        buckets.take_back()
    assert spend(buckets, 40) == 30


def test_tokens_that_were_not_needed_are_given_back() -> None:
    buckets = of(1)
    for _ in range(10):
        assert spend_silently(buckets, 6) == 6
        buckets.give_back(b"key", LIMITS, 6, at=NOW)


def test_the_memory_is_bounded_and_new_keys_are_charged_to_the_bucket_for_all() -> None:
    buckets = of(1, capacity=10)
    for number in range(1000):
        key = number.to_bytes(2)
        spending = buckets.open({key: LIMITS, b"a": (Limit(10**5, 10),)}, Counter({key: 1, b"a": 1}), at=NOW)
        assert spending.take([key, b"a"])
    assert max(len(buckets._own), len(buckets._uncharged)) <= 11
    assert buckets._own.missing(b"a", now=NOW.timestamp()) == (pytest.approx(1000 * 5 / 10**4, abs=1e-3),)


@pytest.mark.django_db
def test_buckets_that_are_full_again_are_forgotten() -> None:
    for number, hours in enumerate([-1, 1]):
        at = (NOW + timedelta(hours=hours)).timestamp()
        SharedBucket.objects.create(key=bytes([number]), burst_full_at=at, long_full_at=at)
    assert forget_full(now=NOW) == 1


# Shares ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_worker_registers_itself_and_counts_the_live_workers() -> None:
    Worker([], Wakeup()).process_batch(now=NOW)
    assert own_share().part == 1
    with other_session() as other:
        other.execute("SELECT pg_advisory_lock_shared(%s)", [0x776F726B])
        other.execute("SELECT pg_advisory_lock_shared(%s)", [0x776F726B])  # a session counts once
        Worker([], Wakeup()).process_batch(now=NOW)
        assert own_share().part == 1 / 2
        other.execute("SELECT pg_advisory_unlock_all()")
        own_share().count()
        assert own_share().part == 1


@pytest.mark.django_db
def test_a_busy_worker_counts_the_live_workers_once_in_five_seconds(monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr("kit.batches.batch.monotonic", lambda: now)
    worker = Worker([], Wakeup())
    worker.process_batch(now=NOW)
    with statements() as sent:
        for _ in range(20):
            now += 1.0
            worker.process_batch(now=NOW)
    assert sum("mode = 'ShareLock'" in each for each in sent) == 4


@pytest.mark.django_db
def test_tokens_spent_while_the_clock_was_ahead_come_back_without_waiting_for_that_time() -> None:
    longest = LIMITS[-1].seconds
    assert 0 < spend(of(1), 100, now=NOW + timedelta(days=30)) < 100
    right = NOW + timedelta(seconds=3 * longest)
    assert spend(of(1), 100, now=NOW) == 0
    assert spend(of(1), 1, now=right) == 1
