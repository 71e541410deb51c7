"""Tests of the arithmetic of token buckets, for any sequence of spending and any change of a process's share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.buckets import bucket
from kit.buckets.bucket import Limit, part, per_minute

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
