"""Database work of the event loop, in threads."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Each thread has its connection, and any of them may have been left with one that broke."""
    return await asyncio.to_thread(_with_good_connection, partial(function, *args, **kwargs))


def _with_good_connection(work: Callable[[], T]) -> T:
    close_old_connections()
    return work()
