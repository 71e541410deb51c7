"""The loop of a worker: batch after batch, each a read, decisions and a write in one transaction.

Every step takes what is due of its table, and what is in the memory of the process: results of POSTs, messages that
arrived. The holder of one lock listens to the NOTIFY of new rows and wakes its peers after a full batch. A step whose
commit failed takes one row, then two, four. A row that fails alone is quarantined, or comes again if it is locked.
"""

import select
import threading
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, Protocol

import structlog
from django.db import connection, transaction

from kit.batches.batch import Wakeup
from kit.db.clock import clock
from kit.db.reasons import is_conflict, is_lock_timeout, is_unavailable, reason
from kit.db.statements import fetch, write
from kit.processes.leader import BATCHES, TRY

log = structlog.get_logger(__name__)
LIMIT = 200
PAUSE_SECONDS = 0.02
LOOK_SECONDS = 1.0
ATTEMPTS = 3


class Step(Protocol):
    """What a worker does with one table."""

    def due_at(self) -> float | None:
        """Return when something of the process is due (monotonic, 0.0 for now), or None."""

    def work(self, limit: int, now: Any, *, looks: bool) -> bool:
        """Take, decide and write. Return whether more is left. ``looks`` says that rows of others may be due."""

    def committed(self) -> None:
        """Send what was decided."""

    def rolled_back(self) -> None:
        """Forget what was decided."""

    def quarantine(self, error: Exception, now: Any) -> None:
        """Set the one row aside that makes `work` fail with a limit of one."""


class Loop:
    """Processes batches in the calling thread until `stop`."""

    def __init__(self, steps: Sequence[Step], wakeup: Wakeup) -> None:
        self._steps, self._wakeup = steps, wakeup
        self._limits = dict.fromkeys(steps, LIMIT)
        self._is_looking, self._look_at = True, 0.0
        self._listening: Any = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Process batches. While the database is unavailable, wait."""
        while not self._stopping.is_set():
            started = monotonic()
            try:
                self._listen()
                if not self.batch():
                    self._wait(started + PAUSE_SECONDS)
            except Exception as error:
                if not is_unavailable(error):
                    raise
                log.warning("batch_postponed", reason=reason(error))
                connection.close()
                self._listening = None
                sleep(0.5)
        connection.close()

    def stop(self) -> None:
        self._stopping.set()
        self._wakeup.set()

    def batch(self) -> bool:
        """Let all steps work in one transaction; after failures, each by itself. Return whether rows are left."""
        looks, self._is_looking = self._is_looking or monotonic() >= self._look_at, False
        if looks:
            self._look_at = monotonic() + LOOK_SECONDS
        steps = [step for step in self._steps if looks or _is_due(step)]
        for _ in range(ATTEMPTS):
            try:
                return self._run(steps, looks=looks)
            except Exception as error:  # noqa: PERF203
                if is_unavailable(error) or not is_conflict(error):
                    break
        return any([self._run_carefully(step, looks=looks) for step in steps])

    def _run(self, steps: Sequence[Step], *, looks: bool) -> bool:
        try:
            with transaction.atomic(durable=True):
                left = [step.work(self._limits[step], clock.now(), looks=looks) for step in steps]
                if any(left):
                    write("NOTIFY work_peers")
        except BaseException:
            for step in steps:
                step.rolled_back()
            raise
        for step in steps:
            step.committed()
            self._limits[step] = min(2 * self._limits[step], LIMIT)
        self._is_looking = self._is_looking or any(left)
        return any(left)

    def _run_carefully(self, step: Step, *, looks: bool) -> bool:
        """Let one step work alone, with one row first. Set the row aside if it fails even so."""
        is_first, self._limits[step] = self._limits[step] > 1, 1
        try:
            return self._run([step], looks=looks)
        except Exception as error:
            if is_unavailable(error) or is_first and (is_conflict(error) or is_lock_timeout(error)):
                raise
            log.error("step_failed", step=type(step).__name__, error=type(error).__name__)
            with transaction.atomic(durable=True):
                step.quarantine(error, clock.now())
            return True

    def _listen(self) -> None:
        connection.ensure_connection()
        if self._listening is not connection.connection:
            self._listening = connection.connection
            write("LISTEN work_peers")
            [(now, is_first)] = fetch(f"SELECT clock_timestamp(), {TRY}", {"key": BATCHES})
            clock.set(now)
            if is_first:
                write("LISTEN work")
            self._is_looking = True

    def _wait(self, not_before: float) -> None:
        """Wait until something is due, or a NOTIFY or a result arrives; at least until ``not_before``."""
        sleep(max(not_before - monotonic(), 0.0))
        while not self._stopping.is_set():
            if list(self._listening.notifies(timeout=0)):
                self._is_looking = True
                return
            due = [at for step in self._steps if (at := step.due_at()) is not None]
            seconds = min([self._look_at, *due]) - monotonic()
            if seconds <= 0:
                return
            readable, _, _ = select.select([self._wakeup, self._listening], [], [], seconds)
            if self._wakeup in readable:
                self._wakeup.clear()


def _is_due(step: Step) -> bool:
    at = step.due_at()
    return at is not None and at <= monotonic()
