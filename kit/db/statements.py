"""Statements of the message path: parameters bound by the server, values in binary, prepared plans.

Django binds parameters in the client. A payload then travels as hexadecimal text, and PostgreSQL parses and plans each
statement again. For the message path that is half of the cost of a statement; for the console it does not matter.
"""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, cast

from django.db import connection
from django.db.models import Model

from kit.db.base import DatabaseWrapper, Parameters, Rows, Written

Statement = tuple[LiteralString, Parameters]


def fetch(sql: LiteralString, parameters: Parameters = ()) -> Rows:
    """Run one statement on Django's connection, in its transaction, and return its rows (none without a result).

    Raises the exceptions of `django.db`, as Django's own cursors do.
    """
    [rows] = fetch_each((sql, parameters))
    return rows


def fetch_each(*statements: Statement) -> list[Rows]:
    """Run several statements, in one round trip within a transaction, and return the rows of each."""
    written = [_database().write(*statement) for statement in statements]
    return [statement.rows() for statement in written]


def write(sql: LiteralString, parameters: Parameters = ()) -> Written:
    """Send a statement without waiting for it: together with the next read of this transaction, or with its COMMIT.

    That read or COMMIT raises the error of the statement.
    """
    return _database().write(sql, parameters)


def write_rows(
    sql: LiteralString, columns: Sequence[str], rows: Iterable[Sequence[Any]], **others: object
) -> list[Written]:
    """Send a statement for many rows, with one array parameter for each column.

    The first column is the key, which must not be None. The arrays are in the order of the keys, as `array_value`
    needs. A row with the key of an earlier one goes into a further statement. Without rows nothing is sent.
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
    """Return an SQL expression that finds the value of a row in an array of `write_rows`, by a binary search.

    ``keys`` and ``key`` are expressions for the array of keys and the key of the row; ``kind`` is the type of the
    value. The statement must make sure that the key is in the array (`= ANY`). A join with the arrays would be slow:
    PostgreSQL does not know their length, and compares each of two hundred rows with each of two hundred values.
    """
    return f"(%({name})b::{kind}[])[width_bucket({key}, {keys})]"


def _database() -> DatabaseWrapper:
    return cast("DatabaseWrapper", connection)


def table(model: type[Model]) -> LiteralString:
    """Return the name of another app's table. The import of the model shows the dependency to import-linter."""
    return model._meta.db_table  # noqa: SLF001 - documented


def stored(table: LiteralString, *, where: LiteralString = "true", index: LiteralString = "") -> LiteralString:
    """Return an SQL expression for the number of rows in a table, or in a partial index with the condition ``where``.

    Up to a thousand rows are counted, in 0.1 ms. Beyond that, the number comes from PostgreSQL's statistics.
    """
    return f"""(
        SELECT CASE WHEN reltuples > 1000 THEN reltuples::bigint ELSE (
            SELECT count(*) FROM (SELECT FROM {table} WHERE {where} LIMIT 1001) AS counted
        ) END FROM pg_class WHERE oid = '{index or table}'::regclass
    )"""
