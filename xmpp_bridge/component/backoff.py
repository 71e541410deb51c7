"""When to connect again. Pure."""

from dataclasses import dataclass

from kit.backoff import doubled

FIRST_SECONDS = 1.0
MAX_SECONDS = 60.0
# What only an operator can mend: another component of our name, a wrong secret, a name that the server does not know.
# To hammer at the door does not help.
HOPELESS = frozenset({"conflict", "not-authorized", "host-unknown"})
# Only that often: whoever had the lock before may need a quarter of a minute to notice that it has it no more.
CONFLICTS_OF_HANDOVER = 4


@dataclass(slots=True)
class Backoff:
    """The pauses between connections: doubled each time, and spread so that several components do not come at once."""

    failures: int = 0

    def succeeded(self) -> None:
        """Begin anew, because a connection came about."""
        self.failures = 0

    def is_hopeless(self, end: str) -> bool:
        """Return whether only an operator can mend what ended the last connection."""
        return end in HOPELESS and (end != "conflict" or self.failures >= CONFLICTS_OF_HANDOVER)

    def pause(self, end: str, *, jitter: float) -> float:
        """Return how many seconds to wait after a connection that ended so; ``jitter`` is in 0..1."""
        span = MAX_SECONDS if self.is_hopeless(end) else doubled(FIRST_SECONDS, self.failures, max_seconds=MAX_SECONDS)
        self.failures += 1
        return span * (1 - jitter / 4)
