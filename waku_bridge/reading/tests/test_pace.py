"""The pause before the next read of a cache, as tables."""

import pytest

from waku_bridge.reading.pace import GATHERED, IDLE_SECONDS, MIN_SECONDS, Ring


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


@pytest.mark.parametrize("rate", [0, 1, 10, 20, 40, 100, 1000])
def test_a_few_messages_gather_at_a_steady_rate(rate):
    ring, pause, rest = Ring(100_000), IDLE_SECONDS, 0.0
    for _ in range(200):
        came = rest + rate * pause
        rest = came % 1
        pause = ring.next_read(3 * int(came), int(came), pause)  # two thirds of the page are for others
    wanted = GATHERED / rate if rate else IDLE_SECONDS
    assert pause == pytest.approx(min(max(wanted, MIN_SECONDS), IDLE_SECONDS), rel=0.2)


def test_a_few_seconds_after_a_burst_the_pause_is_as_long_as_before():
    ring = Ring(100_000)
    ring.next_read(100, 100, 0.2)
    assert ring.next_read(0, 0, MIN_SECONDS) == MIN_SECONDS
    assert ring.next_read(0, 0, 5.0) == IDLE_SECONDS


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


@pytest.mark.parametrize(("page", "fill"), [(0, 0.0), (25, 0.5), (50, 1.0), (51, 0.5)])
def test_the_fill_of_a_cache_follows_from_the_page_and_the_capacity(page, fill):
    assert Ring(50).fill(page) == fill


def test_a_page_above_the_capacity_raises_the_capacity():
    ring = Ring(50)
    ring.fill(1000)
    assert ring.fill(100) == 0.05
