"""Rows that wait have a due time: `take` what is due, and say of each row that it is `done`, or due `again`.

A writer that acts at once writes its row as *claimed*: ``due_at`` is the end of its lease. Any other row is *offered*:
it is due now, or when it is planned for. Whoever finds a row overdue acts on it. So a retry, the act of a process that
died, and an answer at its deadline are one thing: a ``due_at`` in the past. An act that is done ends the row: it leaves
the work table, and what it was is written to the history of its day.

    insert, claimed ──▶ act ──▶ done: history
             ▲           │
             │           └────▶ again, due later ◀── the lease ends, because the process died
             └── take, again ─────────┘

A claim is a row's id with its ``due_at``. `done` and `again` change only rows whose claim still holds. So a result that
comes after another process took the row changes nothing, and neither does one for another row that got the id after a
fail-over.

Replies use these statements. Open notifications, requests and envelopes go by the same rule with statements of their
own: `notifications.queues.claim`, `notifications.delivery.settling`, `waku_bridge.inbox`.

``due_at`` is never set before now. So a look begins at the earliest row that an earlier look left open, and reads no
index entries of rows that are done: see `Table.oldest` and `kit.batches.looking`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, LiteralString

from kit.db.base import Rows, array_value, fetch, write_rows

# A column with its type.
Column = tuple[LiteralString, LiteralString]
_IDS: LiteralString = "%(ids)b::bigint[]"
_of = partial(array_value, _IDS, "n.id")
_CLAIMED: LiteralString = f"n.id = ANY ({_IDS}) AND n.due_at = {_of('claimed', 'timestamptz')}"


@dataclass(frozen=True, slots=True)
class Table:
    """A work table, with columns ``id`` and ``due_at``, and the table of what ended.

    ``kept`` are the columns that go to the history as they are. ``ends`` are those that `done` writes there. Rows for
    which ``kept_if`` is false leave no history.
    """

    name: LiteralString
    history: LiteralString
    kept: Sequence[LiteralString]
    ends: Sequence[Column]
    kept_if: LiteralString = "TRUE"

    @property
    def oldest(self) -> LiteralString:
        """Return a query for the earliest row that is due, for `Step.oldest`."""
        return f"SELECT min(due_at) {self.due}"

    @property
    def due(self) -> LiteralString:
        """Return the part of a query that finds the rows that are due."""
        return f"FROM {self.name} AS n WHERE due_at >= %(nothing_before)s AND due_at <= %(now)s"


def take(
    table: Table, columns: Sequence[LiteralString], *, limit: int, now: datetime, nothing_before: datetime
) -> Rows:
    """Lock the rows that are due, the earliest first, and return these columns of them. Locked rows are skipped.

    The caller says in the same transaction of each row that it is done, or due again: at the end of its lease where
    the caller acts on it.
    """
    return fetch(take_sql(table, columns), {"limit": limit, "now": now, "nothing_before": nothing_before})


def done(table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """End rows. Each is given as its id, the ``due_at`` of its claim, and the values of `Table.ends`."""
    write_rows(done_sql(table), ("ids", "claimed", *(name for name, _ in table.ends)), rows)


def again(table: Table, rows: Sequence[Sequence[Any]], columns: Sequence[Column] = ()) -> None:
    """Set when rows are due again, and other columns of them.

    Each row is given as its id, the ``due_at`` of its claim, the new ``due_at``, and the values of ``columns``.
    """
    write_rows(again_sql(table, columns), ("ids", "claimed", "due_at", *(name for name, _ in columns)), rows)


def take_sql(table: Table, columns: Sequence[LiteralString]) -> LiteralString:
    return f"SELECT {', '.join(columns)} {table.due} ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED"


def done_sql(table: Table) -> LiteralString:
    names, kept = ", ".join(name for name, _ in table.ends), ", ".join(table.kept)
    values = ", ".join(_of(name, kind) for name, kind in table.ends)
    return f"""
        WITH ended AS (DELETE FROM {table.name} AS n WHERE {_CLAIMED} RETURNING *)
        INSERT INTO {table.history} ({kept}, {names}) SELECT {kept}, {values} FROM ended AS n WHERE {table.kept_if}
    """


def again_sql(table: Table, columns: Sequence[Column]) -> LiteralString:
    changes = ", ".join(f"{name} = {_of(name, kind)}" for name, kind in (("due_at", "timestamptz"), *columns))
    return f"UPDATE {table.name} AS n SET {changes} WHERE {_CLAIMED}"
