"""Rows that wait have a due time: `take` what is due, and say of each row that it is `done` or due `again`.

A writer that acts at once writes a row as claimed: `due_at` is the end of its lease. Any other row is offered: it is
due now, or when it is planned for. Whoever finds a row overdue acts on it, so a retry, a push of a dead worker and an
answer at its deadline are one thing. An act that is done deletes the row and writes what it was to the day's history.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from kit.db.statements import array_value, fetch, write, write_rows

# A look begins this long before the earliest row that the last complete look left open.
OVERLAP = timedelta(minutes=1)
COMPLETE_EVERY = timedelta(minutes=10)
IDS: LiteralString = "%(ids)b::bigint[]"


@dataclass(frozen=True)
class Table:
    """A work table, the columns that go to its history, and those that are written at the end, with their types.

    ``groups`` is a column by which rows are taken apart (queues), or empty.
    """

    name: LiteralString
    history: LiteralString
    kept: LiteralString
    ends: tuple[tuple[LiteralString, LiteralString], ...]
    groups: LiteralString = ""


class Cursor:
    """Where a look begins, by group: no row that is due was left open before it."""

    def __init__(self) -> None:
        self._begin: dict[int, datetime] = {}
        self._complete_at = datetime.min

    def begin(self, groups: Iterable[int], now: datetime) -> list[datetime]:
        """Return where to look from in each group: its beginning where that has to be found out again."""
        if self._complete_at is datetime.min or now - self._complete_at > COMPLETE_EVERY:
            self._begin.clear()
            self._complete_at = now
        return [self._begin.get(group, datetime.min.replace(tzinfo=now.tzinfo)) for group in groups]

    def note(self, group: int, oldest: datetime | None, now: datetime) -> None:
        """Note the earliest row that a look left open in a group (None: none)."""
        self._begin[group] = min(oldest or now, now) - OVERLAP


def take(
    table: Table,
    cursor: Cursor,
    budgets: dict[int, int],
    limit: int,
    *,
    now: datetime,
    columns: LiteralString,
    joined: LiteralString = "",
) -> list[tuple[Any, ...]]:
    """Lock the rows that are due, the earliest of each group first, as many as its budget. Locked ones are skipped."""
    within: LiteralString = f"{table.groups} = head.id AND " if table.groups else ""
    sql: LiteralString = f"""
        SELECT head.id, {columns}
        FROM unnest(%(groups)b::integer[], %(budgets)b::integer[], %(begin)b::timestamptz[]) AS head (id, room, begin)
        CROSS JOIN LATERAL (
            SELECT * FROM {table.name} WHERE {within} due_at >= head.begin AND due_at <= %(now)s
            ORDER BY due_at LIMIT head.room FOR UPDATE SKIP LOCKED
        ) AS n {joined} LIMIT %(limit)s
    """
    groups = list(budgets)
    values = {"groups": groups, "budgets": [min(budgets[each], limit) for each in groups], "limit": limit, "now": now}
    found = fetch(sql, values | {"begin": cursor.begin(groups, now)})
    for group in groups:
        if sum(row[0] == group for row in found) < budgets[group] and len(found) < limit:
            cursor.note(group, None, now)
    return [row[1:] for row in found]


def done(table: Table, rows: Sequence[tuple[Any, ...]], *, unless: LiteralString = "FALSE") -> None:
    """End rows, each an id and what `Table.ends` names. Those for which ``unless`` holds stay."""
    values = ", ".join(array_value(IDS, "over.id", name, kind) for name, kind in table.ends)
    sql: LiteralString = f"""
        WITH over AS (DELETE FROM {table.name} AS n WHERE id = ANY ({IDS}) AND NOT ({unless}) RETURNING *)
        INSERT INTO {table.history} ({table.kept}, {", ".join(name for name, _ in table.ends)})
        SELECT {table.kept}, {values} FROM over
    """
    write_rows(sql, ("ids", *(name for name, _ in table.ends)), rows)


def again(
    table: Table,
    changes: LiteralString,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    only_if: LiteralString = "TRUE",
) -> None:
    """Set when rows are due again, and change them. Each is an id, its time (`due`), and what ``changes`` refers to."""
    due = array_value(IDS, "n.id", "due", "timestamptz")
    sql: LiteralString = f"""
        UPDATE {table.name} AS n SET due_at = {due}, {changes} WHERE id = ANY ({IDS}) AND {only_if}
    """
    write_rows(sql, ("ids", "due", *columns), rows)


def of(name: LiteralString, kind: LiteralString) -> LiteralString:
    """Return the value of a row in a column of `again` or `done`."""
    return array_value(IDS, "n.id", name, kind)


def offer() -> None:
    """Notify the workers of rows that are due now."""
    write("NOTIFY work")
