"""Batches: a worker processes waiting rows of the database, and results in its memory, one batch after another.

    rows that wait ─────────┐                                      ┌──▶ POSTs, on the event loop of the process
                            ├──▶ step after step ──▶ one commit ───┤
    results of the POSTs ───┘                                      └──▶ what the process remembers
              ▲                                                                   │
              └────────────────────── the wakeup is set ◀─────────────────────────┘

A batch takes the rows that have arrived since the last batch. It never waits for a POST: a later batch takes the
results. The steps of a batch work in their order, and each returns what it decided:

    work(batch) ──▶ Work ──┬── handed ──▶ the later steps, in the same transaction (`Batch.handed`)
                           └── decided ──▶ the step's own `committed`, which sends it; dropped if the commit fails

This module has what a step needs. The loop is in `kit.batches.worker`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, LiteralString, TypeVar

import structlog
from django.db import connection

from kit.db.base import write

log = structlog.get_logger(__name__)
T = TypeVar("T")

CHANNEL = "batches"
WAKE_PEERS = "batches_peers"
# Items of one step in one batch. A step with a lower limit is careful, because a batch failed.
LIMIT = 200
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Batch:
    """The input of one step: at most ``limit`` items, and what earlier steps ``handed`` to it.

    In ``taken`` the step records the items that it holds. After a rollback it gets the same batch object back.
    """

    limit: int
    now: datetime
    handed: Sequence[object] = ()
    taken: Sequence[Any] = ()
    nothing_before: datetime = LONG_AGO  # no waiting row is older, by the time that `Step.oldest` selects

    @property
    def values(self) -> dict[str, Any]:
        """Return the limit and the times, as parameters of the queries that take rows."""
        return {"limit": self.limit, "now": self.now, "nothing_before": self.nothing_before}

    @property
    def is_careful(self) -> bool:
        """Return whether the step takes few items, because an earlier batch failed."""
        return self.limit < LIMIT


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """The result of one step. ``is_more_left`` says that items were left because of the limit."""

    decided: T
    handed: Sequence[object] = ()
    is_more_left: bool = False


class Step:
    """One part of every batch. The worker calls its methods in the thread that processes the batches.

    The defaults are for steps that keep nothing in memory and have nothing to undo.
    """

    # An SQL query for the earliest time of rows that wait for this step, from `%(nothing_before)s` on. A process that
    # ends leaves them to other processes. Steps whose items are all in memory have no query.
    oldest: LiteralString = ""
    # An SQL query for rows that wait, where that is not the same: they have no time, or some must wait longer.
    waits: LiteralString = ""
    # Only the leader looks for rows of this step.
    is_for_leader = False
    # The step processes only what earlier steps have handed to it.
    follows = False

    @property
    def takes_rows(self) -> bool:
        """Return whether rows may wait for the step."""
        return bool(self.waits or self.oldest)

    def next_at(self) -> float | None:
        """Return when items in memory are due (monotonic, 0.0 for now), or None without such items."""
        return None

    def is_under_way(self) -> bool:
        """Return whether this process still expects results that no other process can record.

        A process that is to stop waits for them.
        """
        return False

    def work(self, batch: Batch) -> Work[Any]:
        """Decide and write, in the batch's transaction, and return the decisions."""
        raise NotImplementedError

    def committed(self, decided: Any) -> None:
        """Send what was decided, and remove the processed items from memory."""

    def rolled_back(self, batch: Batch) -> None:
        """Restore the memory of the step to its state before `work`, because the transaction was rolled back.

        Another thread calls it before it ends the process in the middle of a batch.
        """

    def quarantine(self, error: Exception, batch: Batch) -> None:  # noqa: ARG002 - the signature of a step
        """Quarantine the one item of the batch, which makes `work` fail, so that it does not block the others."""
        log.error("step_failed", step=type(self).__name__, error=type(error).__name__)

    def again(self, batch: Batch) -> None:
        """Leave the one item of the batch, which needs a row that another session keeps locked, for a later batch.

        By default, that is the next one.
        """


class Wakeup:
    """An event that wakes the thread which processes the batches. Any thread may set it; `select` can wait for it."""

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False

    def set(self) -> None:
        """Wake the thread, unless the event is set already."""
        if not self._is_set:
            self._is_set = True
            os.eventfd_write(self._file, 1)

    def clear(self) -> None:
        """Reset the event. Call it only when the file is readable, and before the next batch."""
        os.eventfd_read(self._file)
        self._is_set = False

    def fileno(self) -> int:
        return self._file


def wake(payload: str = "") -> None:
    """Notify the leader that rows wait: at the commit of this transaction, or at once outside of one.

    ``payload`` names their step, which then works without a look. It is empty for rows of any step.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


def wake_peers() -> None:
    """Notify every worker that rows wait: those that this process found, but cannot process itself."""
    write(f"NOTIFY {WAKE_PEERS}")
