"""Which stretch of time is read next, as tables."""

from datetime import UTC, datetime, timedelta

import pytest

from waku_bridge.reading.store.windows import (
    EPOCH,
    Window,
    newest_slice,
    plan,
    rest,
    searched_until,
    settled,
    suspect,
    urgent,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)
TICK = 1e-6


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def span(start, end):
    return Window(at(start), at(end))


def planned(watermark, *, late=0, recovery=2 * DAY, is_first=False, is_late=False):
    return plan(
        watermark_at=at(watermark),
        late_searched_at=at(late),
        now=NOW,
        recovery=recovery,
        is_first=is_first,
        is_late=is_late,
    )


@pytest.mark.parametrize(
    ("watermark", "fresh", "missed"),
    [
        (-3, (-3, -3), None),  # nothing is new
        (-6, (-6 + TICK, -3), None),
        (-150, (-150 + TICK, -3), None),
        (-3600, (-180, -3), (-3600 + TICK, -180)),
        (30, (-90, -3), None),  # somebody put the clock right
        (3600, (-180, -3), (-48 * 3600, -180)),  # for nobody knows how long, what was read was the future
    ],
)
def test_reads_what_is_new_at_once_and_what_was_missed_long_ago_later(watermark, fresh, missed):
    found = planned(watermark)
    assert found.fresh == span(*fresh)
    assert found.missed == (missed and span(*missed))
    assert found.watermark_at == at(-3)
    assert not found.unrecoverable


@pytest.mark.parametrize(
    ("watermark", "fresh", "missed"),
    [(0, (-90, -3), None), (-90, (-180, -3), None), (-91, (-180, -3), (-181, -180))],
)
def test_the_first_pass_of_a_reader_covers_the_doubts_of_the_one_before(watermark, fresh, missed):
    found = planned(watermark, is_first=True)
    assert (found.fresh, found.missed) == (span(*fresh), missed and span(*missed))


def test_passes_leave_nothing_out_between_them_and_read_nothing_twice():
    before = planned(-60)
    after = plan(watermark_at=before.watermark_at, late_searched_at=NOW, now=at(3), recovery=DAY)
    assert after.fresh.start_ns == before.fresh.end_ns + 1


def test_what_a_pass_reads_and_what_it_misses_leave_no_gap_between_them():
    found = planned(-3600)
    assert found.missed.end_at == found.fresh.start_at
    assert found.missed.start_at == at(-3600 + TICK)


def test_an_outage_is_caught_up_with_no_further_back_than_told():
    found = planned(-7200, recovery=timedelta(hours=1), is_first=True)
    assert found.missed == span(-3600, -180)
    assert found.unrecoverable == timedelta(seconds=3690)


@pytest.mark.parametrize("last", [0, -599])
def test_late_messages_are_searched_every_ten_minutes(last):
    assert planned(0, late=last).late is None


@pytest.mark.parametrize(
    ("last", "is_late", "late"),
    [
        (-600, False, (-600 - 65 * 60 + TICK, -65 * 60)),  # each message once, when no other will come beside it
        (-700, False, (-700 - 65 * 60 + TICK, -65 * 60)),
        (-600, True, (-75 * 60, -60)),
        (-76 * 60, False, (-75 * 60, -60)),
        (-(10**6), False, (-75 * 60, -60)),  # the first time
    ],
)
def test_where_nothing_was_late_only_what_was_not_searched_yet_is_searched(last, is_late, late):
    assert planned(0, late=last, is_late=is_late).late == span(*late)


def test_once_the_clock_was_put_right_everything_late_is_searched_at_once():
    """Else nothing would be, until it is as late as it was said to be."""
    assert planned(-3, late=30 * 24 * 3600).late == span(-75 * 60, -60)


def test_a_store_that_was_away_is_taken_for_late():
    assert planned(-3600, late=-600).late == span(-75 * 60, -60)


def test_what_a_live_read_may_have_lost_is_searched_at_once_and_all_around_it_later():
    assert urgent(lost_since=at(-10), now=NOW) == span(-12, 25)
    assert urgent(lost_since=at(-3600), now=NOW) == span(-180, 25)
    assert suspect(since=at(-10), now=NOW) == span(-70, 25)


@pytest.mark.parametrize(
    ("doubtful", "part"),
    [((-50, 25), None), ((-70, 25), (-70, -60)), ((-200, -100), (-200, -100)), ((-60, 0), (-60, -60))],
)
def test_a_doubt_is_settled_as_far_as_it_is_a_minute_old(doubtful, part):
    assert settled(span(*doubtful), now=NOW) == (part and span(*part))


def test_of_a_doubt_remains_what_was_not_read():
    assert span(-70, 25).after(span(-70, -60)) == span(-60 + TICK, 25)
    assert span(-200, -100).after(span(-200, -100)) is None


def slices(window):
    while window:
        yield newest_slice(window)
        window = rest(window)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((0, 30), [(0, 30)]),
        ((0, 60), [(0, 60)]),
        ((0, 61), [(1, 61), (0, 1 - TICK)]),
        ((0, 150), [(90, 150), (30 - TICK, 90 - TICK), (0, 30 - 2 * TICK)]),
        ((0, 0), [(0, 0)]),
    ],
)
def test_a_window_is_read_in_slices_newest_first_and_whole(window, expected):
    assert list(slices(span(*window))) == [span(*each) for each in expected]


def test_doubts_add_up():
    assert span(0, 10).hull(span(5, 20)) == span(0, 20)
    assert span(0, 10).hull(None) == span(0, 10)


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
