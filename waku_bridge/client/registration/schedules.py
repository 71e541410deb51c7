"""Schedules for repeating messages: status-go's exponential backoff. Pure."""

from dataclasses import dataclass

SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Schedule:
    """A limit of attempts, and the waits between them: after attempt n, counted from 1, ``base_seconds`` · n · 2ⁿ."""

    base_seconds: float
    max_attempts: int

    def delay_ns(self, attempt: int) -> int:
        """Return the wait after this attempt, in nanoseconds."""
        return round(self.base_seconds * attempt * (1 << attempt) * SECOND_NS)


REGISTRATION = Schedule(base_seconds=15.0, max_attempts=12)
"""Waits of 30 s, 120 s, 360 s … and about four days before the last attempt."""

RESENDING = Schedule(base_seconds=2.0, max_attempts=5)
"""A sender resends at most five times. After a wrong token it resends at once, then after 4, 16, 48 and 128 s, since
status-go counts from 0 there. After an internal error, for which status-go does not resend at all, it starts with 4 s.
"""
