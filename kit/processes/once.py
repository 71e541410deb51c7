"""Values of which each process has exactly one."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes a value at its first call and keeps it for the life of the process.

    `functools.cache` would let several threads make one each. Nothing here may be made before a worker's fork.
    """
    lock = threading.Lock()
    made: list[T] = []

    def get() -> T:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get
