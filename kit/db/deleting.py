"""Deletion of expired rows in small steps.

Each step of a purge is a commit of its own. So a purge never holds a lock for long, and can stop after any step: the
next purge continues. It hardly waits for locks: rows that another session has locked are left for the next purge.
"""

from collections.abc import Iterable, Iterator
from time import monotonic, sleep
from typing import Any, LiteralString

from django.db.models import QuerySet

from kit.db.connections import timeouts
from kit.db.sessions import Timeouts
from kit.db.statements import fetch

# A purge takes at most this long, and pauses for half of it, so that other sessions can use the database.
PURGE_SECONDS = 20.0
CHUNK_SIZE = 2_000
# Rows that one statement of `remove` deletes, in about a tenth of a second.
SET_SIZE = 5_000
TIMEOUTS = Timeouts(statement_seconds=60, lock_seconds=1)


def delete_in_chunks(rows: QuerySet[Any]) -> Iterator[int]:
    """Delete ordered rows, and the rows that depend on them. Yield the number of rows of each step."""
    while keys := list(rows.values_list("pk", flat=True)[:CHUNK_SIZE]):
        rows.model._default_manager.filter(pk__in=keys).delete()  # noqa: SLF001
        yield len(keys)


def remove(sql: LiteralString, **parameters: Any) -> Iterator[int]:
    """Repeat a statement that deletes up to `SET_SIZE` rows and returns their number. Yield the number of each step.

    It is for tables that grow with the traffic, because the rows never leave the database. The statement must contain
    its limit as a literal. With a parameter, PostgreSQL plans for a tenth of the table, and reads all of it.
    """
    while True:
        [(removed,)] = fetch(sql, parameters)
        yield removed
        if removed < SET_SIZE:
            return


def run_for_a_while(steps: Iterable[int]) -> int:
    """Run steps for up to `PURGE_SECONDS`, and return the number of rows that they removed. The next run continues.

    After each step, pause for as long as the step took.
    """
    begin = step_began = monotonic()
    removed = 0
    with timeouts(TIMEOUTS):
        for rows in steps:
            removed += rows
            now = monotonic()
            if now - begin > PURGE_SECONDS:
                break
            sleep(now - step_began)
            step_began = monotonic()
    return removed
