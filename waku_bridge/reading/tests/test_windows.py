"""The windows to read next, as tables."""

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
        (-3, (-3, -3), None),  # no time has passed
        (-6, (-6 + TICK, -3), None),
        (-150, (-150 + TICK, -3), None),
        (-3600, (-180, -3), (-3600 + TICK, -180)),
        (30, (-90, -3), None),  # the clock was corrected
        (3600, (-180, -3), (-48 * 3600, -180)),  # the store was read in the future, for an unknown time
    ],
)
def test_a_plan_has_the_fresh_window_first_and_an_old_gap_as_missed(watermark, fresh, missed):
    found = planned(watermark)
    assert found.fresh == span(*fresh)
    assert found.missed == (missed and span(*missed))
    assert found.watermark_at == at(-3)
    assert not found.unrecoverable


@pytest.mark.parametrize(
    ("watermark", "fresh", "missed"),
    [(0, (-90, -3), None), (-90, (-180, -3), None), (-91, (-180, -3), (-181, -180))],
)
def test_the_first_pass_of_a_reader_covers_the_suspect_window_of_its_predecessor(watermark, fresh, missed):
    found = planned(watermark, is_first=True)
    assert (found.fresh, found.missed) == (span(*fresh), missed and span(*missed))


def test_passes_leave_no_gap_between_them_and_read_no_time_twice():
    before = planned(-60)
    after = plan(watermark_at=before.watermark_at, late_searched_at=NOW, now=at(3), recovery=DAY)
    assert after.fresh.start_ns == before.fresh.end_ns + 1


def test_the_fresh_and_the_missed_window_leave_no_gap_between_them():
    found = planned(-3600)
    assert found.missed.end_at == found.fresh.start_at
    assert found.missed.start_at == at(-3600 + TICK)


def test_catching_up_goes_back_no_further_than_the_recovery_time():
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
def test_without_late_messages_only_the_time_that_was_not_searched_yet_is_searched(last, is_late, late):
    assert planned(0, late=last, is_late=is_late).late == span(*late)


def test_after_a_correction_of_the_clock_all_late_messages_are_searched_at_once():
    """Otherwise there would be no search until the clock reaches the time of the last one."""
    assert planned(-3, late=30 * 24 * 3600).late == span(-75 * 60, -60)


def test_a_store_after_an_outage_counts_as_late():
    assert planned(-3600, late=-600).late == span(-75 * 60, -60)


def test_a_possible_loss_is_searched_at_once_and_the_time_around_it_later():
    assert urgent(lost_since=at(-10), now=NOW) == span(-12, 25)
    assert urgent(lost_since=at(-3600), now=NOW) == span(-180, 25)
    assert suspect(since=at(-10), now=NOW) == span(-70, 25)


@pytest.mark.parametrize(
    ("doubtful", "part"),
    [((-50, 25), None), ((-70, 25), (-70, -60)), ((-200, -100), (-200, -100)), ((-60, 0), (-60, -60))],
)
def test_a_suspect_window_is_settled_up_to_a_minute_ago(doubtful, part):
    assert settled(span(*doubtful), now=NOW) == (part and span(*part))


def test_the_part_of_a_suspect_window_that_was_not_read_remains():
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
def test_the_slices_of_a_window_cover_it_newest_first(window, expected):
    assert list(slices(span(*window))) == [span(*each) for each in expected]


def test_suspect_windows_are_merged_into_their_hull():
    assert span(0, 10).hull(span(5, 20)) == span(0, 20)
    assert span(0, 10).hull(None) == span(0, 10)


@pytest.mark.parametrize(
    ("missed", "until"), [([], 0), ([(-500, -400)], -500), ([(-500, -400), (-900, -800)], -900), ([(50, 60)], 0)]
)
def test_a_store_counts_as_searched_up_to_its_oldest_missed_window(missed, until):
    assert searched_until(NOW, [span(*each) for each in missed]) == at(until)


def test_nanoseconds_are_exact_and_adjacent_windows_leave_none_out():
    first = Window(EPOCH, datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC))
    second = Window(first.end_at, NOW)
    assert first.end_ns == 1767225600_123456_999
    assert second.start_ns == 1767225600_123456_000
