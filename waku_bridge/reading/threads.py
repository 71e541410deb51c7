"""Do the database work of the event loop in threads."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in a thread.

    Each thread has a connection of its own, which may be left over and broken, so it is checked first.
    """
    return await asyncio.to_thread(_with_good_connection, partial(function, *args, **kwargs))


def _with_good_connection(work: Callable[[], T]) -> T:
    close_old_connections()
    return work()
