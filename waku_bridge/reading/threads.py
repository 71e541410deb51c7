"""Threads for the blocking database work of the event loop."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in a thread.

    Each thread has a database connection of its own. An earlier call may have left it broken, so it is checked first.
    """

    def work() -> T:
        close_old_connections()
        return function(*args, **kwargs)

    return await asyncio.to_thread(work)
