"""Short-lived cache of a slow result, shared by all threads of a process."""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
# A value up to this age is returned while another thread renews it, so that no caller waits for a server that hangs.
GRACE_SECONDS = 70


class Recent(Generic[T]):
    """A result of ``find`` that is at most ``seconds`` old. Only one thread at a time calls ``find``."""

    def __init__(self, find: Callable[[], T], seconds: Callable[[], float]) -> None:
        self._find = find
        self._seconds = seconds
        self._lock = Lock()
        self._known: T | None = None
        self._found_at = float("-inf")

    def get(self) -> T:
        """Return the cached result, or call ``find``. While another thread does that, return the last result."""
        age = monotonic() - self._found_at
        known = self._known
        if known is not None and (age < self._seconds() or (age < GRACE_SECONDS and self._lock.locked())):
            return known
        with self._lock:
            if self._known is None or monotonic() - self._found_at >= self._seconds():
                self._known = self._find()
                self._found_at = monotonic()
            return self._known

    def forget(self) -> None:
        """Make the next `get` call ``find``."""
        self._known = None
