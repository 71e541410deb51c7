"""Connections to the configured database besides Django's own."""

from pathlib import Path
from typing import Any

from django.db import connection


def connection_parameters() -> dict[str, Any]:
    """Return the connection parameters of the configured database, without those for Django's synchronous cursors."""
    parameters: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}


def is_marked_ready(data_dir: Path) -> bool:
    """Return whether the `postmaster.pid` of a local PostgreSQL says that it accepts connections.

    Read it before a connection to a server that may be starting, because PostgreSQL logs an error for each connection
    that comes too early. A server that was killed leaves the file behind.
    """
    try:
        lines = (data_dir / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return False
    return lines[-1:] == [b"ready   "]
