"""How many rows a large table has, without reading all of it."""

from typing import LiteralString


def stored(table: LiteralString, *, where: LiteralString = "true", index: LiteralString = "") -> LiteralString:
    """Return the expression of SQL for the rows of a table, or for those of a partial index.

    They are counted one by one up to a thousand, which takes 0.1 ms; beyond that PostgreSQL's statistics tell.
    """
    return f"""(
        SELECT CASE WHEN reltuples > 1000 THEN reltuples::bigint ELSE (
            SELECT count(*) FROM (SELECT FROM {table} WHERE {where} LIMIT 1001) AS counted
        ) END FROM pg_class WHERE oid = '{index or table}'::regclass
    )"""
