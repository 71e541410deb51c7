"""When the cache is read again, as tables."""

import pytest

from waku_bridge.reading.pace import IDLE_SECONDS, Ring


@pytest.mark.parametrize(
    ("capacity", "page", "elapsed", "pause"),
    [
        (50, 0, 1.0, IDLE_SECONDS),
        (50, 1, 0.15, IDLE_SECONDS),  # 7 per second: the ring lasts for 7 s
        (50, 20, 0.15, 0.0375),  # 133 per second
        (50, 25, 0.15, 0.0),  # half full
        (50, 50, 0.15, 0.0),
        (10_000, 75, 0.15, IDLE_SECONDS),  # 500 per second are nothing to a large one
        (10_000, 2_000, 0.15, 0.075),
    ],
)
def test_the_fuller_the_sooner(capacity, page, elapsed, pause):
    assert Ring(capacity).next_read(page, elapsed) == pytest.approx(pause)


@pytest.mark.parametrize(("page", "fill"), [(0, 0.0), (25, 0.5), (50, 1.0), (51, 0.5)])
def test_a_page_says_how_full_the_cache_was_unless_it_is_larger_than_told(page, fill):
    assert Ring(50).fill(page) == fill


def test_a_capacity_that_was_wrong_is_learnt():
    ring = Ring(50)
    ring.fill(1000)
    assert ring.fill(100) == 0.05
