"""Supported versions of PostgreSQL. The tests run on the oldest and on the newest of them."""

from django.db import OperationalError

OLDEST, NEWEST = 15, 18


class TooOldError(OperationalError):
    """PostgreSQL is older than `OLDEST`. The message is one line for an operator."""


def refuse_too_old(server_version: int) -> None:
    """Raise TooOldError for an unsupported version. ``server_version`` is libpq's number, such as 150018."""
    if server_version // 10_000 < OLDEST:
        raise TooOldError(f"PostgreSQL {_name(server_version)} is too old: this server needs {OLDEST} or newer")


def untried(server_version: int) -> str:
    """Return one line about a version that is newer than `NEWEST`, or an empty text."""
    if server_version // 10_000 <= NEWEST:
        return ""
    return f"PostgreSQL {_name(server_version)} is not tested with this server: {NEWEST} is the newest tested version."


def _name(server_version: int) -> str:
    return f"{server_version // 10_000}.{server_version % 10_000}"
