"""A value that takes a while to find out, kept for a moment and shared by all threads of a process."""

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
# A value of that age holds while it is being renewed, so that nobody waits for a server that hangs.
GRACE_SECONDS = 70


class Recent(Generic[T]):
    """What ``find`` returned at most ``seconds`` ago. However many ask, one thread at a time finds it out."""

    def __init__(self, find: Callable[[], T], seconds: Callable[[], float]) -> None:
        self._find = find
        self._seconds = seconds
        self._lock = Lock()
        self._known: T | None = None
        self._found_at = float("-inf")

    def get(self) -> T:
        """Return what is known, or find it out. While another thread does, the last value still holds."""
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
        """Have the next call find it out anew."""
        self._known = None
