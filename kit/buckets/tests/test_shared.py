"""Tests of shared buckets: silent spending, charges to the table, and limits that hold over the whole server."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from django.db import OperationalError, connection
from hypothesis import given
from hypothesis import strategies as st

from kit.batches.batch import Wakeup
from kit.batches.worker import Worker
from kit.buckets import bucket, shared
from kit.buckets.bucket import BucketLimits, Limit
from kit.buckets.models import SharedBucket
from kit.buckets.shared import Share, SharedBuckets, forget_full, own_share
from kit.db.base import fetch
from tests.rig.server import wait_until
from tests.rig.statements import other_session, statements

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = (Limit(30, 10), Limit(600, 3600))


class Among(Share):
    """The share of one of ``workers`` workers."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.part = 1 / workers


class Time:
    """The clock of the database, and the monotonic clock of all processes."""

    def __init__(self) -> None:
        self.passed = self.behind = 0.0

    def __call__(self) -> datetime:
        return NOW + timedelta(seconds=self.passed - self.behind)

    def passes(self, seconds: float) -> None:
        self.passed += seconds

    def is_set_back(self, seconds: float) -> None:
        self.behind += seconds


@contextmanager
def simulated_time() -> Iterator[Time]:
    time = Time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "monotonic", lambda: time.passed)
        yield time


@pytest.fixture
def time():
    with simulated_time() as time:
        yield time


def of(workers: int, capacity: int = 1000) -> SharedBuckets:
    return SharedBuckets(Among(workers), capacity)


def spend(buckets: SharedBuckets, number: int, *, key: bytes = b"key", now: datetime = NOW) -> int:
    """Take ``number`` tokens in one batch, one by one, and return how many it got."""
    got = sum(buckets.take([(key, LIMITS)], now=now) for _ in range(number))
    buckets.keep()
    return got


@pytest.mark.django_db
def test_a_batch_decides_without_a_statement_and_is_charged_with_one():
    buckets = of(1)
    with statements() as sent:
        assert buckets.take([(b"key", LIMITS), (b"other", LIMITS)], now=NOW)
        assert sent == []
        buckets.keep()
        buckets.keep()
    assert len(sent) == 1


@pytest.mark.django_db
def test_spending_within_the_silent_share_is_charged_once_a_second_or_with_what_exceeds_it(time):
    buckets = of(1)
    with statements() as sent:
        for passed in (0.0, 0.5, 0.25, 0.25):
            time.passes(passed)
            assert spend(buckets, 1, now=time()) == 1
        assert len(sent) == 2
        assert spend(buckets, 1, now=time()) == 1
        assert spend(buckets, 20, key=b"another", now=time()) == 20
        assert len(sent) == 3


@pytest.mark.django_db
@pytest.mark.parametrize(("workers", "number"), [(1, 6), (2, 3), (64, 1)])
def test_spending_within_the_silent_share_writes_no_row(workers, number):
    buckets = of(workers)
    assert spend(buckets, number) == number
    assert SharedBucket.objects.count() == 0
    assert spend(buckets, 1) == 1
    assert SharedBucket.objects.count() == 1


@pytest.mark.django_db
def test_tokens_are_taken_from_all_buckets_or_from_none():
    buckets = of(1)
    assert spend(buckets, 40) == 30
    for _ in range(40):
        assert not buckets.take([(b"other", LIMITS), (b"key", LIMITS)], now=NOW)
    assert spend(buckets, 40, key=b"other") == 30


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("workers", "batches", "got"),
    [
        (1, [(0, 20, 0)] * 3 + [(0, 20, 5)], [20, 10, 0, 15]),
        (2, [(0, 1, 0)] * 40, [1] * 30 + [0] * 10),  # silently spent tokens count
        # A recipient of a message every two minutes for a day, and then of thirty at once, gets all of them.
        (2, [*((0, 1, seconds) for seconds in range(0, 86_400, 120)), (0, 30, 86_400)], [1] * 720 + [30]),
        # An excess has to come back before anything is let through.
        (2, [(0, 30, 0), (1, 30, 0)] * 2 + [(1, 30, at) for at in (5, 10, 15)], [30, 30, 0, 0, 0, 0, 15]),
    ],
    ids=["batches", "silent", "come back", "excess"],
)
def test_a_limit_holds_over_batches_and_processes(workers, batches, got):
    """A batch has a process, a number of tokens that it asks for, and a second."""
    fleet = [of(workers) for _ in range(workers)]
    spent = [spend(fleet[n], number, now=NOW + timedelta(seconds=seconds)) for n, number, seconds in batches]
    assert spent == got


@pytest.mark.django_db
@pytest.mark.parametrize("workers", [2, 16])
def test_a_worker_knows_after_one_batch_what_the_others_have_spent(workers):
    fleet = [of(workers) for _ in range(workers)]
    assert [spend(worker, 10) for worker in fleet] == [10] * workers
    assert sum(spend(worker, 10) for worker in fleet) <= 30
    assert [spend(worker, 10) for worker in fleet] == [0] * workers
    started = of(workers)
    assert [spend(started, 20) for _ in range(2)] == [20, 0]


@pytest.mark.django_db
def test_a_share_that_changes_gives_no_token_twice():
    share = Among(1)
    buckets = SharedBuckets(share)
    got = 0
    for workers in (1, 4, 1, 4, 1):
        share.part = 1 / workers
        got += sum(spend(buckets, number) for number in (1, 2, 5, 10))
    assert got == 30


@pytest.mark.django_db
def test_a_batch_that_was_rolled_back_spent_nothing():
    buckets = of(1)
    for number in (6, 40, 6, 40):
        sum(buckets.take([(b"key", LIMITS)], now=NOW) for _ in range(number))
        buckets.take_back()
    assert spend(buckets, 40) == 30


@pytest.mark.django_db(transaction=True)
def test_a_charge_that_fails_raises_nothing_and_goes_with_the_next_one():
    one, other = of(2), of(2)
    with pytest.raises(OperationalError):
        fetch("SELECT pg_terminate_backend(pg_backend_pid())")
    assert spend(one, 20) == 20  # raises nothing
    connection.close()
    assert one.take([(b"key", LIMITS)], now=NOW)
    one.take_back()
    assert SharedBucket.objects.count() == 0
    assert spend(one, 1, key=b"another") == 1
    assert spend(other, 4) == 4
    assert spend(other, 30) == 6


@pytest.mark.django_db
def test_the_next_token_is_booked_in_advance_at_the_time_when_all_buckets_have_one():
    buckets, slow = of(1), (Limit(1, 60),)
    assert spend(buckets, 40) == 30
    wanted = [(b"key", LIMITS), (b"slow", slow)]
    for number in (1, 2, 3):
        waits = buckets.book(wanted, now=NOW) - NOW
        assert waits.total_seconds() == pytest.approx(number / 3, abs=1e-5)
    assert buckets.take([(b"slow", slow)], now=NOW)
    assert buckets.book(wanted, now=NOW) == NOW + timedelta(seconds=60)


@pytest.mark.django_db
def test_the_memory_is_bounded_and_new_keys_are_charged_to_the_bucket_for_all():
    buckets = of(1, capacity=10)
    for number in range(1000):
        assert buckets.take([(number.to_bytes(2), LIMITS), (b"a", (Limit(10**5, 10),))], now=NOW)
        buckets.keep()
    assert max(len(buckets._known), len(buckets._silent)) <= 11
    assert buckets._known.missing(b"a", now=NOW.timestamp()) == (pytest.approx(1000 / 10**4, abs=1e-3),)


@pytest.mark.django_db
def test_buckets_that_are_full_again_are_forgotten():
    for number, hours in enumerate([-1, 1]):
        at = (NOW + timedelta(hours=hours)).timestamp()
        SharedBucket.objects.create(key=bytes([number]), burst_full_at=at, long_full_at=at)
    assert forget_full(now=NOW) == 1


@pytest.mark.django_db
def test_a_clock_that_is_set_back_keeps_no_bucket_empty_and_fills_none_that_is_known(time):
    one, other = of(2), of(2)
    assert (spend(one, 40, now=time()), spend(other, 10, now=time())) == (30, 10)
    time.passes(20)
    time.is_set_back(60)
    assert (spend(one, 5, now=time()), spend(other, 20, now=time())) == (5, 20)
    assert [spend(one, 30, now=time()) for _ in range(2)] == [25, 0]


@pytest.mark.django_db
def test_a_row_that_was_written_while_the_clock_was_ahead_keeps_no_bucket_empty():
    """All workers are started again after the clock of the database was a month ahead."""
    assert spend(of(1), 100, now=NOW + timedelta(days=30)) == 30
    started = of(1)
    assert [spend(started, number) for number in (10, 10, 20)] == [10, 10, 10]
    assert spend(of(1), 1) == 1
    assert spend(of(1), 30, now=NOW + timedelta(seconds=10)) == 30


# Any number of processes ----------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A batch of one process, ``seconds`` after the last one: how many tokens it asks for, and how it ends."""

    process: int
    seconds: float
    number: int
    end: str


class Processes:
    """Processes with one limit, of which some hang or are killed before they charge, or roll back and halve a batch."""

    def __init__(self, number: int, limits: BucketLimits, time: Time) -> None:
        self.fleet = [of(number) for _ in range(number)]
        self.limits = limits
        self._time = time
        SharedBucket.objects.all().delete()

    def charge_all(self) -> None:
        """Let all processes charge what they have not charged yet."""
        for buckets in self.fleet:
            buckets.take([], now=self._time())
            buckets.keep()

    def process(self, step: Step, number: int) -> int:
        """Process a batch that asks for ``number`` tokens, and return how many it got."""
        index = step.process % len(self.fleet)
        buckets = self.fleet[index]
        buckets.keep()  # what a process that hung has not charged yet
        if step.end in {"rolled_back", "halved"}:
            self._take(buckets, number)
            buckets.take_back()
        if step.end == "rolled_back":
            return 0
        half = number // 2 if step.end == "halved" else 0
        got = self._take(buckets, half)
        if half:
            buckets.keep()
        got += self._take(buckets, number - half)
        if step.end == "killed":
            self.fleet[index] = of(len(self.fleet))
        elif step.end != "hangs":
            buckets.keep()
        return got

    def _take(self, buckets: SharedBuckets, number: int) -> int:
        return sum(buckets.take([(b"key", self.limits)], now=self._time()) for _ in range(number))


LIMITS_OF_ALL = st.sampled_from([LIMITS, (Limit(4, 8),), (Limit(1, 5), Limit(20, 300)), (Limit(200, 60),)])
ENDS = st.sampled_from(["charged"] * 4 + ["hangs", "killed", "rolled_back", "halved"])
STEPS = st.builds(Step, st.integers(0, 7), st.floats(0, 6) | st.just(0.0), st.integers(1, 40), ENDS)
FLEETS = st.integers(1, 8)


@pytest.mark.django_db
@given(FLEETS, LIMITS_OF_ALL, st.lists(STEPS, min_size=5, max_size=60), st.integers(0, 60))
def test_below_the_limit_nothing_is_refused(number, limits, steps, set_back_at):
    with simulated_time() as time:
        processes, full_at = Processes(number, limits, time), ()
        for position, step in enumerate(steps):
            time.passes(step.seconds)
            if position == set_back_at:
                processes.charge_all()  # one that hangs meanwhile charges by the old clock, until it reads the new one
                time.is_set_back(60)
            if step.end == "killed" and time.behind:
                step = step._replace(end="hangs")  # noqa: PLW2901 - nobody tells a new process of the clock
            asked = min(step.number, int(bucket.left(full_at, limits, now=time.passed)))
            got = processes.process(step, asked)
            assert got == (0 if step.end == "rolled_back" else asked)
            full_at = bucket.spend(full_at, limits, got, now=time.passed)


@pytest.mark.django_db
@given(FLEETS, LIMITS_OF_ALL, st.lists(STEPS, min_size=5, max_size=60))
def test_a_limit_is_exceeded_by_a_batch_of_each_process_at_most(number, limits, steps):
    """A batch that is killed before it was charged is one more. Up to a fifth is spent silently, or a token of each."""
    with simulated_time() as time:
        processes, spent = Processes(number, limits, time), [(0.0, 0)]
        for step in steps:
            time.passes(step.seconds)
            spent.append((time.passed, processes.process(step, step.number)))
    batches = (number + sum(step.end == "killed" for step in steps)) * max(got for _, got in spent)
    for limit in limits:
        most = limit.tokens + batches + max(limit.tokens / 5, number)
        for first, (start, _) in enumerate(spent):
            got = 0
            for at, each in spent[first:]:
                got += each
                assert got <= most + (at - start) / limit.token_seconds + 0.01


# Shares ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_worker_registers_itself_and_counts_the_live_workers_once_in_five_seconds(monkeypatch):
    now = 1000.0
    for module in ("looking", "worker"):
        monkeypatch.setattr(f"kit.batches.{module}.monotonic", lambda: now)
    worker = Worker([], Wakeup())
    worker.process_batch(now=NOW)
    wait_until(lambda: own_share().count() or own_share().part == 1, what="the workers of earlier tests are gone")
    with other_session() as other:
        for _ in range(2):  # a session counts once
            other.execute("SELECT pg_advisory_lock_shared(%s)", [0x776F726B])
        with statements() as sent:
            for _ in range(20):
                now += 1.0
                worker.process_batch(now=NOW)
        assert sum("mode = 'ShareLock'" in each for each in sent) == 4
        assert own_share().part == 1 / 2
        other.execute("SELECT pg_advisory_unlock_all()")
        own_share().count()
        assert own_share().part == 1
