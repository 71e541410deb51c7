"""Connections to the configured database beside Django's own."""

from typing import Any

from django.db import connection


def connection_parameters() -> dict[str, Any]:
    """Return the parameters of the configured database, without Django's own for synchronous connections."""
    parameters: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in parameters.items() if name not in {"cursor_factory", "context"}}
