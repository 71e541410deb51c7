"""Which stretch of time is read next, as tables."""

from datetime import UTC, datetime, timedelta

import pytest

from waku_bridge.reading.windows import (
    EPOCH,
    Window,
    lost_reply,
    newest_slice,
    plan,
    rest,
    searched_until,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def span(start, end):
    return Window(at(start), at(end))


def planned(watermark, *, late=0, recovery=2 * DAY):
    return plan(watermark_at=at(watermark), late_searched_at=at(late), now=NOW, recovery=recovery)


@pytest.mark.parametrize(
    ("watermark", "fresh", "missed"),
    [
        (0, (-60, 25), None),  # the first pass over a store
        (-3, (-63, 25), None),
        (-60, (-120, 25), None),
        (-61, (-120, 25), (-121, -120)),
        (-3600, (-120, 25), (-3660, -120)),
        (3600, (-60, 25), None),  # somebody put the clock right
    ],
)
def test_reads_the_last_minute_at_once_and_the_rest_of_what_was_missed_later(watermark, fresh, missed):
    found = planned(watermark)
    assert found.fresh == span(*fresh)
    assert found.missed == (missed and span(*missed))
    assert found.watermark_at == at(-5)
    assert not found.unrecoverable


def test_what_a_pass_reads_and_what_it_misses_leave_no_gap_between_them():
    found = planned(-3600)
    assert found.missed.end_at == found.fresh.start_at
    assert found.missed.start_at == at(-3600 - 60)


def test_an_outage_is_caught_up_with_no_further_back_than_told():
    found = planned(-7200, recovery=timedelta(hours=1))
    assert found.missed == span(-3600, -120)
    assert found.unrecoverable == timedelta(seconds=3660)


@pytest.mark.parametrize(("last", "is_due"), [(0, False), (-599, False), (-600, True), (-(10**6), True)])
def test_late_messages_are_searched_every_ten_minutes(last, is_due):
    assert planned(0, late=last).late == (span(-75 * 60, -60) if is_due else None)


def test_a_lost_reply_is_searched_from_before_the_last_good_read_to_the_latest_clock():
    assert lost_reply(last_read_at=at(-10), now=NOW) == span(-70, 25)


def slices(window):
    while window:
        yield newest_slice(window)
        window = rest(window)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((0, 30), [(0, 30)]),
        ((0, 60), [(0, 60)]),
        ((0, 61), [(1, 61), (0, 1)]),
        ((0, 150), [(90, 150), (30, 90), (0, 30)]),
        ((0, 0), [(0, 0)]),
    ],
)
def test_a_window_is_read_in_slices_newest_first_and_whole(window, expected):
    assert list(slices(span(*window))) == [span(*each) for each in expected]


@pytest.mark.parametrize(
    ("outer", "inner", "covers"),
    [((0, 10), (0, 10), True), ((0, 10), (2, 3), True), ((0, 10), (-1, 3), False), ((0, 10), (2, 11), False)],
)
def test_a_window_covers_another_that_lies_within_it(outer, inner, covers):
    assert span(*outer).covers(span(*inner)) is covers


@pytest.mark.parametrize(
    ("missed", "until"), [([], 0), ([(-500, -400)], -500), ([(-500, -400), (-900, -800)], -900), ([(50, 60)], 0)]
)
def test_all_is_searched_until_where_something_is_still_to_be_caught_up_with(missed, until):
    assert searched_until(NOW, [span(*each) for each in missed]) == at(until)


def test_nanoseconds_are_exact_and_touching_windows_leave_none_out():
    first = Window(EPOCH, datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC))
    second = Window(first.end_at, NOW)
    assert first.end_ns == 1767225600_123456_999
    assert second.start_ns == 1767225600_123456_000
