"""Tests of token buckets without the database: their arithmetic, and the memory that holds them."""

import sys
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.buckets import bucket
from kit.buckets.bucket import Buckets, Charge, Limit, part, per_minute

LIMITS = (Limit(30, 10), Limit(600, 3600))


def spent_at_once(full_at, now, limits=LIMITS):
    number = 0
    while bucket.has(full_at, limits, now=now):
        full_at = bucket.spend(full_at, limits, now=now)
        number += 1
    return number, full_at


def test_a_full_bucket_has_all_its_tokens_and_gets_them_back_evenly():
    limits = (Limit(30, 10),)
    number, full_at = spent_at_once((), 0, limits)
    assert (number, bucket.next_at(full_at, limits)) == (30, pytest.approx(10 / 30))
    number, full_at = spent_at_once(full_at, 5, limits)
    assert number == 15
    assert spent_at_once(full_at, 3600, limits)[0] == 30


def test_the_rate_in_the_long_run_is_limited_as_well():
    full_at, numbers = (), []
    for second in range(7200):
        number, full_at = spent_at_once(full_at, second)
        numbers.append(number)
    assert 1190 <= sum(numbers[:3600]) <= 1200
    assert 599 <= sum(numbers[3600:]) <= 601
    assert bucket.next_at(full_at, LIMITS) - 7199 <= 6


def test_tokens_spent_in_advance_come_back_first():
    limits = per_minute(60)
    full_at = bucket.spend((), limits, 90, now=0)
    assert bucket.left(full_at, limits, now=0) == -30
    assert bucket.left(full_at, limits, now=30) == 0
    assert bucket.left(full_at, limits, now=1000) == 60


def test_a_share_reduces_rate_and_tokens_but_leaves_one_token_at_least():
    assert part(LIMITS, 1 / 4) == (Limit(7.5, 10), Limit(150, 3600))
    assert part((Limit(2, 10),), 1 / 4) == (Limit(1, 20),)
    assert part((Limit(0.5, 1),), 1 / 4) == (Limit(0.5, 4),)


shares = st.sampled_from([1, 1 / 2, 1 / 4, 1 / 64])
calls = st.lists(st.tuples(st.floats(0, 5), shares), min_size=1, max_size=60)


@given(calls, st.sampled_from([Limit(4, 8), Limit(1, 5), Limit(30, 10)]))
def test_no_window_gets_more_than_the_burst_and_the_rate_while_the_share_changes(spans, limit):
    """The number of workers may go from one to four and back. Tokens that are left of a share must not count twice."""
    now, full_at, times = 0.0, (), []
    for span, share in spans:
        now += span
        number, full_at = spent_at_once(full_at, now, part((limit,), share))
        times += [now] * number
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            window = times[last] - start
            assert last - first + 1 <= limit.tokens + window / limit.token_seconds + 0.01


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40))
def test_four_workers_with_a_quarter_each_keep_the_limit_together(spans):
    limits, now, got, full_at = (Limit(40, 10),), 0.0, 0, [()] * 4
    for span in spans:
        now += span
        for worker in range(4):
            number, full_at[worker] = spent_at_once(full_at[worker], now, part(limits, 1 / 4))
            got += number
    assert got <= 40 + (now - spans[0]) * 4 + 4 * 0.01


# The memory of buckets: it is bounded, and no flood of names refills a bucket in use ----------------------------------
ONE = (Limit(1, 60),)
PARENT = Charge("all", (Limit(1000, 10),))


def store(capacity):
    return Buckets(capacity, frozenset({"all"}).__contains__)


def own(name, limits=ONE):
    return Charge(name, limits)


def flood(buckets, number, *, now=0.0):
    """Take a token for each of ``number`` new names, and return how many got one."""
    return sum(buckets.take(own(("outsider", name)), PARENT, now=now) for name in range(number))


def test_a_path_is_taken_from_as_a_whole_or_not_at_all():
    buckets = Buckets()
    domain = own("domain", (Limit(2, 60),))
    taken = [buckets.take(own(name), domain, now=0) for name in ("a", "a", "b", "c")]
    assert taken == [True, False, True, False]
    assert buckets.take(own("c"), now=0)


def test_a_new_name_is_charged_to_its_parents_only_while_no_bucket_is_full():
    buckets = store(10)
    assert flood(buckets, 9) == 9
    assert [buckets.take(own("honest"), PARENT, now=0) for _ in range(3)] == [True] * 3
    assert len(buckets) == 10
    assert flood(buckets, 2000) == 1000 - 9 - 3


def test_only_a_full_bucket_is_replaced():
    buckets = Buckets(capacity=3)
    assert [buckets.take(own(name), now=at) for at, name in enumerate("abc")] == [True] * 3
    buckets.take(own("d"), now=60)  # only a is full
    assert [buckets.has(own(name), now=60) for name in "abcd"] == [True, False, False, False]


def test_a_bucket_that_is_used_again_and_again_is_kept():
    buckets, busy = store(50), own("busy", (Limit(10, 10),))
    for now in range(300):
        while buckets.take(busy, now=now):
            pass
        flood(buckets, 40, now=float(now))
        assert not buckets.take(busy, now=now)
        assert len(buckets) <= 51


def test_tokens_of_a_batch_are_given_back_after_a_rollback_which_leaves_no_bucket_behind():
    buckets = Buckets()
    buckets.take(own("known"), now=0)
    buckets.keep()
    for _ in range(3):
        assert buckets.take(own("new"), now=60)
        assert buckets.take(own("known"), now=60)
        buckets.take_back()
    assert len(buckets) == 1
    assert buckets.missing("known", now=60) == (0,)


def test_a_replaced_bucket_does_not_come_back_after_a_rollback():
    buckets = Buckets(capacity=1)
    buckets.take(own("a"), now=0)
    buckets.keep()
    buckets.spend(own("a"), 0, now=61)
    assert buckets.take(own("b"), now=62)
    buckets.take_back()
    assert len(buckets) == 0


def test_a_clock_that_is_set_back_fills_no_bucket_and_blocks_none():
    buckets = Buckets()
    assert [buckets.take(own("a"), now=now) for now in (1000, 500, 559, 560, 1100)] == [True, False, False, True, True]


names = st.integers(0, 6)
steps = st.lists(st.tuples(st.floats(-3, 4), names, st.sampled_from(["keep", "take_back"])), min_size=1, max_size=80)


@given(steps, st.integers(1, 4))
def test_no_name_gets_more_than_its_burst_and_rate_across_evictions_and_clocks_that_are_set_back(spans, capacity):
    """A name that has no bucket is charged to its parent, which then bounds all such names together."""
    buckets, limit, all_ = store(capacity), Limit(3, 6), Limit(10, 5)
    now = passed = 0.0
    with_bucket, in_all = defaultdict(list), []
    for span, name, end in spans:
        now, passed = now + span, passed + max(span, 0)
        is_taken = buckets.take(own(name, (limit,)), Charge("all", (all_,)), now=now)
        if is_taken and end == "keep":
            in_all.append(passed)
            if buckets.missing(name, now=now):
                with_bucket[name].append(passed)
        getattr(buckets, end)()
        assert len(buckets) <= capacity + 1
    for times, each in [(in_all, all_), *((times, limit) for times in with_bucket.values())]:
        for first, start in enumerate(times):
            for last in range(first, len(times)):
                assert last - first + 1 <= each.tokens + (times[last] - start) / each.token_seconds + 0.01


def test_a_bucket_takes_some_three_hundred_bytes():
    buckets = Buckets()
    tracemalloc.start()
    for name in range(20_000):
        buckets.take(own(name.to_bytes(64)), now=0)
    buckets.keep()
    size = tracemalloc.get_traced_memory()[0] / 20_000
    tracemalloc.stop()
    assert size - sys.getsizeof(bytes(64)) < 400
