"""Timeouts of statements, as plain values. The module has no imports of Django: the settings read it."""

from dataclasses import dataclass

# Seconds to wait for PostgreSQL's own timeout error before the client gives up.
GRACE_SECONDS = 5.0
# Seconds after which PostgreSQL ends a transaction whose process sends nothing, as it was stopped or its container
# frozen. Otherwise the rows that it locked would wait until somebody ends it. Decoding the largest batch takes two
# seconds on a busy machine.
IDLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest time of a statement (0: no limit), of its wait for a lock, and between two of a transaction."""

    statement_seconds: float
    lock_seconds: float
    idle_seconds: float = IDLE_SECONDS

    @property
    def answer_seconds(self) -> float | None:
        """Return the seconds within which a working server answers, at least with its own timeout error."""
        return self.statement_seconds + GRACE_SECONDS if self.statement_seconds else None

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a new session, in the notation of PostgreSQL."""
        return {
            "statement_timeout": milliseconds(self.statement_seconds),
            "lock_timeout": milliseconds(self.lock_seconds),
            "idle_in_transaction_session_timeout": milliseconds(self.idle_seconds),
        }


def milliseconds(seconds: float) -> str:
    """Return a duration in the notation of PostgreSQL."""
    return f"{round(seconds * 1000)}ms"
