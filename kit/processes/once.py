"""Values of which each process has exactly one, made at their first use."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes a value at its first call, and keeps it for the life of the process.

    With `functools.cache`, several threads could each make a value. A forked process would have its parent's value,
    such as an event loop without its thread.
    """
    lock = threading.Lock()
    made: list[T] = []
    of_parents: list[list[T]] = []  # kept, because their destructors could affect the parent

    def begin_anew() -> None:
        nonlocal lock, made
        of_parents.append(made)
        lock, made = threading.Lock(), []

    def get() -> T:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    os.register_at_fork(after_in_child=begin_anew)
    return get
