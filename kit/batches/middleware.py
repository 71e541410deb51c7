"""Middleware of batches: traces, and what a worker says about itself, at named points of the loop.

    connected ──▶ looks ──▶ begun ──▶ within each step ──▶ committed            postponed: the database is unavailable

No step depends on it. Each worker has instances of its own, and calls them in its thread.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic

from kit.buckets.shared import COUNTED_EVERY_SECONDS, own_share
from kit.processes.starting import note_refusal
from kit.tracing import BatchTrace


class Middleware:
    """The points of the loop. A subclass defines those that concern it."""

    def connected(self) -> None:
        """Act on a new session of the database."""

    def looks(self) -> None:
        """Act before the worker looks for rows, once a second."""

    def begun(self) -> None:
        """Act before the first step of a batch."""

    def within(self, step: str) -> AbstractContextManager[object]:  # noqa: ARG002 - the signature of a middleware
        """Return the context manager around the work of a step."""
        return nullcontext()

    def committed(self) -> None:
        """Act after a commit, and after the steps have sent what it decided."""

    def postponed(self, error: Exception) -> None:
        """Act on the error of a database that is unavailable."""


class LiveWorkers(Middleware):
    """Registers this worker as live, and counts the live workers: each has an equal share of limits."""

    def __init__(self) -> None:
        self._count_at = 0.0

    def connected(self) -> None:
        own_share().show()
        self._count_at = monotonic() + COUNTED_EVERY_SECONDS

    def looks(self) -> None:
        if monotonic() >= self._count_at:
            own_share().count()
            self._count_at = monotonic() + COUNTED_EVERY_SECONDS


class Tracing(Middleware):
    """Traces the steps of each batch (`kit.tracing`)."""

    def begun(self) -> None:
        self._traced = BatchTrace()

    def within(self, step: str) -> AbstractContextManager[object]:
        return self._traced.step(step)

    def committed(self) -> None:
        self._traced.committed()


class Faults(Middleware):
    """Notes why PostgreSQL refuses this process, for the health of its machine."""

    def postponed(self, error: Exception) -> None:
        note_refusal(error)


def all_middleware() -> Sequence[Middleware]:
    """Return new middleware for one worker."""
    return LiveWorkers(), Tracing(), Faults()
