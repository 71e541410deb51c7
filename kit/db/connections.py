"""Connections to the configured database beside Django's own, and whether its server takes any."""

from pathlib import Path
from typing import Any

from django.db import connection


def connection_parameters() -> dict[str, Any]:
    """Return the parameters of the configured database, without Django's own for synchronous connections."""
    parameters: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}


def is_marked_ready(data_dir: Path) -> bool:
    """Return whether PostgreSQL's own file of its state says that it takes connections; one that was killed leaves it.

    It is read before each connection to a server that may be starting, as PostgreSQL logs an error for one that comes
    too early.
    """
    try:
        lines = (data_dir / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return False
    return lines[-1:] == [b"ready   "]
