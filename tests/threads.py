"""Threads of a test, each with a database connection of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connection

T = TypeVar("T")


def at_once(*works: Callable[[], T]) -> list[T]:
    """Run functions at the same time, close their connections, and return their results."""
    start = threading.Barrier(len(works), timeout=10)

    def run(work: Callable[[], T]) -> T:
        start.wait()
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))
