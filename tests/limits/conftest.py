"""The clock of the tests of limits. It stands still, and passes when a test says so."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from kit.db.clock import Clock

OURS = ("kit.", "notifications.", "registrations.", "waku_bridge.", "xmpp_bridge.")
Instead = Callable[[Callable[[], object], Callable[[], object]], None]


class Time:
    """The present of a test."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def passes(self, **time: float) -> None:
        self.now += timedelta(**time)

    def seconds(self) -> float:
        """Return the time in seconds, as a monotonic clock does."""
        return self.now.timestamp()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Return the clock of the database, as the processes of a test know it. Their buckets go by it alone."""
    time = Time()
    monkeypatch.setattr("kit.buckets.shared.monotonic", time.seconds)
    monkeypatch.setattr(Clock, "now", lambda _clock: time.now)
    return time


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Return ``instead(get, make)``, which gives all modules ``make`` for ``get``."""

    def replace(get: Callable[[], object], make: Callable[[], object]) -> None:
        for name, module in [*sys.modules.items()]:
            if name.startswith(OURS):
                for own in [own for own, value in vars(module).items() if value is get]:
                    monkeypatch.setattr(module, own, make)

    return replace
