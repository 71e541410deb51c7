"""Which versions of PostgreSQL this server runs on. The oldest and the newest are those that the tests run on."""

from django.db import OperationalError

OLDEST, NEWEST = 15, 18


class TooOldError(OperationalError):
    """PostgreSQL is older than `OLDEST`. The text is one line for an operator."""


def refuse_too_old(server_version: int) -> None:
    """Raise TooOldError where this server cannot work. ``server_version`` is libpq's number, such as 150018."""
    if server_version // 10_000 < OLDEST:
        raise TooOldError(f"PostgreSQL {_name(server_version)} is too old: this server needs {OLDEST} or newer")


def untried(server_version: int) -> str:
    """Return one line about a version that is newer than those that were tried, or nothing."""
    if server_version // 10_000 <= NEWEST:
        return ""
    return f"PostgreSQL {_name(server_version)} was never tried with this server: {NEWEST} is the newest that was."


def _name(server_version: int) -> str:
    return f"{server_version // 10_000}.{server_version % 10_000}"
