"""Statements of the message path: parameters bound by the server, values in binary, plans kept by the connection.

Django binds parameters on the client, so that a payload travels as hexadecimal text and each statement is parsed and
planned anew. That is right for the console, but it is half of what a statement of the message path costs.
"""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, cast

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


def write_rows(
    sql: LiteralString, columns: Sequence[str], rows: Iterable[Sequence[Any]], **others: object
) -> list[Written]:
    """Have a statement run that takes the values of many rows as arrays, one for each column, the first one their key.

    It finds them by `beside`, so the rows are in the order of their keys. Of those with the same key each gets a run of
    its own, in the order in which they came.
    """
    left, written = list(rows), []
    while left:
        first = {row[0]: row for row in reversed(left)}
        ordered = [first[key] for key in sorted(first)]
        arrays = {name: [row[place] for row in ordered] for place, name in enumerate(columns)}
        written.append(write(sql, {**arrays, **others}))
        left = [row for row in left if row is not first[row[0]]]
    return written


def beside(keys: LiteralString, key: LiteralString, name: LiteralString, kind: LiteralString) -> LiteralString:
    """Return an SQL expression for a row's own value in an array of `write_rows`, found by a binary search.

    ``keys`` and ``key`` are expressions, and each statement says that the one is among the others (`= ANY`). Instead of
    a search PostgreSQL would join the rows with the arrays, whose length it does not know: it compares each of two
    hundred with each, or reads all that is under way where its statistics are of a time at which nothing was.
    """
    return f"(%({name})b::{kind}[])[width_bucket({key}, {keys})]"


def by_no_index(column: LiteralString) -> LiteralString:
    """Return an SQL expression for a text column that no index is of, for statements that find rows by their keys.

    Where its statistics are of a time at which nothing was under way, PostgreSQL would take an index of all rows in
    this state for as good as that of the keys.
    """
    return f"({column} || '')"


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
