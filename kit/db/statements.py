"""Statements of the message path: parameters bound by the server, values in binary, plans kept by the connection.

Django binds parameters on the client, so that a payload travels as hexadecimal text and each statement is parsed and
planned anew. That is right for the console, but it is half of what a statement of the message path costs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from django.db import connection
from django.db.models import Model

Parameters = Sequence[Any] | Mapping[str, Any]


def fetch(sql: LiteralString, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    """Run one statement on Django's connection, in its transaction, and return its rows (none if it returns nothing).

    Raises the exceptions of `django.db`, as Django's own cursors do.
    """
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(sql, parameters, prepare=True, binary=True)
        # Not `cursor.description`, which makes an object for each column.
        return cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []


def table(model: type[Model]) -> str:
    """Return the table of another app's model, so that who reads it shows in an import."""
    return model._meta.db_table  # noqa: SLF001 - documented


def new_ids(*wanted: tuple[str, int]) -> list[list[int]]:
    """Take the next ids of several tables, each given with how many, so that rows that belong together are inserted at
    once.
    """
    lists = ", ".join("ARRAY(SELECT nextval(%s::regclass) FROM generate_series(1, %s))" for _ in wanted)
    parameters = [value for table, number in wanted for value in (f"{table}_id_seq", number)]
    [found] = fetch(f"SELECT {lists}", parameters)
    return [list(ids) for ids in found]
