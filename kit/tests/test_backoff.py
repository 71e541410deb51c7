"""Tests of the pauses after failures."""

import pytest

from kit.http import Backoff, doubled


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1.0), (1, 2.0), (3, 8.0), (4, 10.0), (10**9, 10.0)])
def test_a_pause_doubles_up_to_its_maximum(failures: int, seconds: float) -> None:
    assert doubled(1.0, failures, max_seconds=10.0) == seconds


def test_half_of_each_pause_is_random() -> None:
    backoff = Backoff(max_seconds=2.0)
    pauses = [backoff.next() for _ in range(5000)]
    assert 0.2 <= pauses[0] <= 0.4
    assert all(1.0 <= pause <= 2.0 for pause in pauses[3:])
    assert len(set(pauses)) > 1000
    assert backoff.failures == 5000


def test_a_peer_has_recovered_once_it_has_worked_for_as_long_as_the_longest_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`w`: an attempt succeeds, `f`: it fails. Each line says after how many seconds, and what is known then."""
    now = [100.0]
    monkeypatch.setattr("kit.http.monotonic", lambda: now[0])
    backoff = Backoff(max_seconds=2.0)
    steps = [(0, "w", 0), (0, "f", 1), (0.1, "w", 1), (1.8, "w", 1), (0.1, "f", 2), (1.0, "w", 2), (2.0, "w", 0)]
    recovered = []
    for seconds, step, failures in [*steps, (9.0, "f", 1), (0.1, "w", 1), (9.0, "f", 1)]:
        now[0] += seconds
        if step == "f":
            backoff.next()
        elif backoff.works():
            recovered.append(now[0])
        assert backoff.failures == failures
    assert recovered == [pytest.approx(105.0)]
