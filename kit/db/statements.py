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
    """Have a statement run for many rows, whose values it takes from arrays, one for each column.

    The first column is the key, and the arrays are in its order, as `array_value` needs. A key must not be None. Rows
    with the same key go to statements of their own, in the order in which they came. Without rows nothing is sent.
    """
    left, written = list(rows), []
    while left:
        first = {row[0]: row for row in reversed(left)}
        ordered = [first[key] for key in sorted(first)]
        arrays = {name: [row[index] for row in ordered] for index, name in enumerate(columns)}
        written.append(write(sql, {**arrays, **others}))
        left = [row for row in left if row is not first[row[0]]]
    return written


def array_value(keys: LiteralString, key: LiteralString, name: LiteralString, kind: LiteralString) -> LiteralString:
    """Return an SQL expression for the value that an array of `write_rows` holds for a row, by a binary search.

    ``keys`` and ``key`` are expressions for the array of keys and the key of the row, ``kind`` is the type of a value.
    The statement itself says that the key is among the keys (`= ANY`). A join with the arrays would be slow: PostgreSQL
    does not know how long they are, and compares each of two hundred rows with each of two hundred values.
    """
    return f"(%({name})b::{kind}[])[width_bucket({key}, {keys})]"


def unindexed(column: LiteralString) -> LiteralString:
    """Return an SQL expression that equals a text column and fits no index, for statements that find rows by their key.

    PostgreSQL may have analyzed the table while it was empty. Then an index of all rows in one state looks as cheap as
    the index of the keys.
    """
    return f"({column} || '')"


def _database() -> DatabaseWrapper:
    return cast("DatabaseWrapper", connection)


def table(model: type[Model]) -> LiteralString:
    """Return the table of another app's model, so that who reads it shows in an import."""
    return model._meta.db_table  # noqa: SLF001 - documented


def new_ids(*wanted: tuple[str, int]) -> Statement:
    """Return the statement that takes the next ids of several tables, each given with how many, so that rows that
    belong together are inserted at once. Its one row has an array for each table.
    """
    lists = ", ".join("ARRAY(SELECT nextval(%s::regclass) FROM generate_series(1, %s))" for _ in wanted)
    parameters = [value for table, number in wanted for value in (f"{table}_id_seq", number)]
    return f"SELECT {lists}", parameters
