"""Removing rows that nobody needs any more, little by little.

A purge is a sequence of small commits, so that it never holds a lock for long and can stop anywhere: the next one finds
what is left. Rows that somebody has locked are left for the next time.
"""

from collections.abc import Iterator
from typing import Any, LiteralString

from django.db.models import QuerySet

from kit.db.statements import fetch

CHUNK_SIZE = 2_000
# Of rows that are removed where they are: a tenth of a second.
SET_SIZE = 5_000


def delete_in_chunks(rows: QuerySet[Any], size: int = CHUNK_SIZE) -> Iterator[int]:
    """Delete ordered rows with all that belongs to them. Yield how many of them each step removed."""
    while keys := list(rows.values_list("pk", flat=True)[:size]):
        rows.model._default_manager.filter(pk__in=keys).delete()  # noqa: SLF001
        yield len(keys)


def remove(sql: LiteralString, **parameters: Any) -> Iterator[int]:
    """Run a statement that removes at most `SET_SIZE` rows and says how many, until there are no more. Yield how many
    each step removed.

    It is for tables that grow with the traffic: the rows never leave the database. The statement names the limit as a
    number, without which PostgreSQL plans for a tenth of the table, and reads all of it.
    """
    while True:
        [(removed,)] = fetch(sql, parameters)
        yield removed
        if removed < SET_SIZE:
            return
