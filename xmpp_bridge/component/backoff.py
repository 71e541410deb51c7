"""Pauses before the component connects again. Pure."""

from dataclasses import dataclass

from kit.backoff import doubled

FIRST_SECONDS = 1.0
MAX_SECONDS = 60.0
# Errors that only an operator can correct: another component of our name, a wrong secret, a name that the server does
# not have. Frequent attempts do not help.
HOPELESS = frozenset({"conflict", "not-authorized", "host-unknown"})
# Failed connections in a row from which a conflict counts as hopeless. At a handover, the process that held the lock
# before may need 15 s to notice that it has lost it.
CONFLICTS_OF_HANDOVER = 4


@dataclass(slots=True)
class Backoff:
    """The pauses between connections: doubled each time, with jitter so that components do not connect all at once."""

    failures: int = 0

    def succeeded(self) -> None:
        """Reset the pauses after a successful connection."""
        self.failures = 0

    def is_hopeless(self, end: str) -> bool:
        """Return whether only an operator can correct the error that ended the last connection."""
        return end in HOPELESS and (end != "conflict" or self.failures >= CONFLICTS_OF_HANDOVER)

    def pause(self, end: str, *, jitter: float) -> float:
        """Return the seconds to wait after a connection that ended with ``end``. ``jitter`` is in 0..1."""
        span = MAX_SECONDS if self.is_hopeless(end) else doubled(FIRST_SECONDS, self.failures, max_seconds=MAX_SECONDS)
        self.failures += 1
        return span * (1 - jitter / 4)
