"""Tests of the pauses after failures."""

import pytest

from kit.backoff import Backoff, doubled


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1.0), (1, 2.0), (3, 8.0), (4, 10.0), (10**9, 10.0)])
def test_a_pause_doubles_up_to_its_maximum(failures: int, seconds: float) -> None:
    assert doubled(1.0, failures, max_seconds=10.0) == seconds


def test_half_of_each_pause_is_random_and_a_success_starts_again_from_the_first_pause() -> None:
    backoff = Backoff(max_seconds=2.0)
    pauses = [backoff.next() for _ in range(5000)]
    assert 0.2 <= pauses[0] <= 0.4
    assert all(1.0 <= pause <= 2.0 for pause in pauses[3:])
    assert len(set(pauses)) > 1000
    assert backoff.failures == 5000
    backoff.reset()
    assert backoff.next() <= 0.4
