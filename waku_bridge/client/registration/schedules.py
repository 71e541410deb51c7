"""When to repeat a message: status-go's exponential backoff. Pure."""

from dataclasses import dataclass

SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long to wait between attempts.

    After attempt n, counted from 1, it is ``base_seconds`` · n · 2ⁿ; there are ``max_attempts``.
    """

    base_seconds: float
    max_attempts: int

    def delay_seconds(self, attempt: int) -> float:
        """Return the wait after this attempt."""
        return self.base_seconds * attempt * (1 << attempt)

    def delay_ns(self, attempt: int) -> int:
        """Return the wait after this attempt, in nanoseconds."""
        return round(self.delay_seconds(attempt) * SECOND_NS)


REGISTRATION = Schedule(base_seconds=15.0, max_attempts=12)
"""30 s, 120 s, 360 s … about four days between the eleventh attempt and the last."""

RESENDING = Schedule(base_seconds=2.0, max_attempts=5)
"""A sender resends at most five times. After a wrong token at once, then after 4, 16, 48 and 128 s, since status-go
counts from 0 there; after an internal error, for which status-go does not resend at all, from 4 s on.
"""
