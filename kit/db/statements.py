"""Statements of the message path: parameters bound by the server, values in binary, plans kept by the connection.

Django binds parameters on the client, so that a payload travels as hexadecimal text and each statement is parsed and
planned anew. That is right for the console, but it is half of what a statement of the message path costs.
"""

from typing import LiteralString, cast

from django.db import connection
from django.db.models import Model

from kit.db.postgresql.base import DatabaseWrapper, Parameters, Rows, Written

Statement = tuple[LiteralString, Parameters]


def fetch(sql: LiteralString, parameters: Parameters = ()) -> Rows:
    """Run one statement on Django's connection, in its transaction, and return its rows (none if it returns nothing).

    Raises the exceptions of `django.db`, as Django's own cursors do.
    """
    [rows] = fetch_each((sql, parameters))
    return rows


def fetch_each(*statements: Statement) -> list[Rows]:
    """Run several statements, which in a transaction is one round trip, and return the rows of each."""
    written = [_database().write(*statement) for statement in statements]
    return [statement.rows() for statement in written]


def write(sql: LiteralString, parameters: Parameters = ()) -> Written:
    """Have a statement run for which nobody waits: with the next one of this transaction, or with its commit.

    Whoever sends it raises its error.
    """
    return _database().write(sql, parameters)


def _database() -> DatabaseWrapper:
    return cast("DatabaseWrapper", connection)


def table(model: type[Model]) -> str:
    """Return the table of another app's model, so that who reads it shows in an import."""
    return model._meta.db_table  # noqa: SLF001 - documented


def new_ids(*wanted: tuple[str, int]) -> Statement:
    """Return the statement that takes the next ids of several tables, each given with how many, so that rows that
    belong together are inserted at once. Its one row has an array for each table.
    """
    lists = ", ".join("ARRAY(SELECT nextval(%s::regclass) FROM generate_series(1, %s))" for _ in wanted)
    parameters = [value for table, number in wanted for value in (f"{table}_id_seq", number)]
    return f"SELECT {lists}", parameters
