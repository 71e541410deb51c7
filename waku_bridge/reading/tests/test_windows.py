"""What to read next of a store, and when to read a cache again, as tables."""

from datetime import UTC, datetime, timedelta

import pytest

from waku_bridge.reading.pace import IDLE_SECONDS, MIN_SECONDS, Ring
from waku_bridge.reading.store.windows import EPOCH, Window, plan, searched_until

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


def test_neither_passes_nor_their_windows_leave_a_gap_or_read_a_time_twice():
    before = planned(-60)
    after = plan(watermark_at=before.watermark_at, late_searched_at=NOW, now=at(3), recovery=DAY)
    assert after.fresh.start_ns == before.fresh.end_ns + 1
    found = planned(-3600)
    assert (found.missed.start_at, found.missed.end_at) == (at(-3600 + TICK), found.fresh.start_at)


def test_catching_up_goes_back_no_further_than_the_recovery_time():
    found = planned(-7200, recovery=timedelta(hours=1), is_first=True)
    assert found.missed == span(-3600, -180)
    assert found.unrecoverable == timedelta(seconds=3690)


ALL_LATE = (-75 * 60, -60)


@pytest.mark.parametrize(
    ("watermark", "last", "is_late", "late"),
    [
        (0, 0, False, None),
        (0, -599, False, None),
        (0, -600, False, (-600 - 65 * 60 + TICK, -65 * 60)),  # each message once, when no other will come beside it
        (0, -700, False, (-700 - 65 * 60 + TICK, -65 * 60)),
        (0, -600, True, ALL_LATE),
        (0, -76 * 60, False, ALL_LATE),
        (0, -(10**6), False, ALL_LATE),  # the first time
        (-3, 30 * 24 * 3600, False, ALL_LATE),  # a corrected clock, which will not reach the last search for a month
        (-3600, -600, False, ALL_LATE),  # a store after an outage counts as late
    ],
)
def test_late_messages_are_searched_every_ten_minutes(watermark, last, is_late, late):
    assert planned(watermark, late=last, is_late=is_late).late == (late and span(*late))


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


# The pause before the next read of a cache ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "page", "elapsed", "pause"),
    [
        (200, 0, 1.0, IDLE_SECONDS),
        (100, 0, 1.0, 0.1),  # a burst of 500 per second fills half of it in that time
        (50, 0, 1.0, 0.05),
        (10, 0, 1.0, 0.01),
        (50, 1, 0.15, 0.05),  # 7 per second, and a burst may follow
        (200, 1, 0.15, IDLE_SECONDS),
        (50, 20, 0.15, 0.0375),  # 133 per second: a tenth of the ring
        (50, 5, 0.01, 0.01),  # 500 per second
        (50, 25, 0.15, 0.0),  # half full
        (50, 50, 0.15, 0.0),
        (10_000, 75, 0.15, MIN_SECONDS),  # 500 per second fill little of a large cache
        (10_000, 4_000, 0.05, 0.0125),
    ],
)
def test_a_fuller_cache_is_read_sooner(capacity, page, elapsed, pause):
    assert Ring(capacity).next_read(page, page, elapsed) == pytest.approx(pause)


@pytest.mark.parametrize("rate", [20, 250, 500, 1000])
def test_a_burst_in_an_idle_moment_does_not_overflow_a_cache_of_fifty(rate):
    """Each read and its commit take ten milliseconds."""
    ring, pause = Ring(50), IDLE_SECONDS
    for _ in range(100):
        pause = ring.next_read(0, 0, pause)
    for _ in range(200):
        page = round(rate * (pause + 0.01))
        assert page < 50 * (1.3 if rate > 500 else 1)
        pause = ring.next_read(page, page, pause + 0.01)


@pytest.mark.parametrize(("pages", "fill"), [([0], 0.0), ([25], 0.5), ([50], 1.0), ([51], 0.5), ([1000, 100], 0.05)])
def test_the_fill_of_a_cache_follows_from_the_page_and_its_capacity(pages, fill):
    ring = Ring(50)
    assert [ring.fill(page) for page in pages][-1] == fill
