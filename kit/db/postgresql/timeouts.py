"""How long statements may take, as plain values: the settings read them before Django is set up."""

from dataclasses import dataclass

# A server that ends a statement says so; this long it may take until we hear it.
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """``statement_seconds`` of 0 is without end."""

    statement_seconds: float
    lock_seconds: float

    @property
    def answer_seconds(self) -> float | None:
        """Return within which time the server answers, if only to say that it has given up."""
        return self.statement_seconds + GRACE_SECONDS if self.statement_seconds else None

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of a session that begins, as PostgreSQL shows them."""
        return {
            "statement_timeout": milliseconds(self.statement_seconds),
            "lock_timeout": milliseconds(self.lock_seconds),
        }


def milliseconds(seconds: float) -> str:
    """Return a time as PostgreSQL reads it."""
    return f"{round(seconds * 1000)}ms"
