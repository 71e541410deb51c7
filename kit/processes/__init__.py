"""Life of a process: start-up checks, leader lock, status and tasks. Here is what needs no other module.

See docs/installation/README.md.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

# Names the pipe from which the parent learns that this process is ready, so that the process before it may end. A pipe
# belongs to one child only, and is closed when the child ends.
READY_VARIABLE = "READY_FD"


class StartError(Exception):
    """A process cannot start. The message is one line that tells the person who started it what to do."""


def announce_ready() -> None:
    """Report to the parent that this process is ready. Do nothing if the parent expects no report or has ended."""
    if number := os.environ.pop(READY_VARIABLE, ""):
        with suppress(OSError):
            os.write(int(number), b"\0")
            os.close(int(number))


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
