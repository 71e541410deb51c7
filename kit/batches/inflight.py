"""In-flight sends of a process: a batch starts them, the event loop makes them, and a later batch records the results.

    batch ──commit──▶ start ──▶ one task each on the loop ──▶ results ──wakes the worker──▶ peek ──commit──▶ recorded

No batch waits for a send. A result stays until its batch is committed, so a batch that was rolled back finds it again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from kit.batches.batch import Wakeup
from kit.http import call_on_loop

T = TypeVar("T")
# Seconds after which a result comes again that could not be recorded.
AGAIN_SECONDS = 10
# A send never raises. Its result reports the failure, also that it took too long: the timeout of an HTTP client would
# begin again with every byte that arrives.
Send = Callable[[], Coroutine[Any, Any, T]]


class InFlight(Generic[T]):
    """The sends of one kind. Each ends in time by itself."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._results: deque[T] = deque()  # the loop appends, and the worker removes
        self.under_way = 0  # sends without a recorded result; only the worker's thread changes it
        self._tasks: set[asyncio.Task[None]] = set()  # only the loop uses it
        self.first_result_at = 0.0  # since when results wait, monotonic

    def start(self, sends: Sequence[Send[T]]) -> None:
        """Start the sends. Call it after the commit that decided them."""
        if sends:
            self.under_way += len(sends)
            call_on_loop(self._start, sends)

    def has_results(self) -> bool:
        """Return whether results wait for a batch that records them."""
        return bool(self._results)

    def are_all_done(self) -> bool:
        """Return whether every send has its result."""
        return len(self._results) == self.under_way

    def peek(self, limit: int) -> list[T]:
        """Return the oldest results. They stay until the batch calls `recorded`."""
        return list(islice(self._results, limit))

    def recorded(self, count: int) -> None:
        """Remove the oldest results, which the batch has stored."""
        for _ in range(count):
            self._results.popleft()
        self.under_way -= count
        self.first_result_at = monotonic()

    def again(self, count: int) -> None:
        """Remove the oldest results, and add them again after `AGAIN_SECONDS`."""
        call_on_loop(self._come_later, [self._results.popleft() for _ in range(count)])

    def _come_later(self, results: Sequence[T]) -> None:
        for result in results:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._arrive, result)

    def _start(self, sends: Sequence[Send[T]]) -> None:
        for send in sends:
            task = asyncio.get_running_loop().create_task(self._send(send))
            self._tasks.add(task)  # the loop has only weak references to its tasks
            task.add_done_callback(self._tasks.discard)

    async def _send(self, send: Send[T]) -> None:
        self._arrive(await send())

    def _arrive(self, result: T) -> None:
        if not self._results:
            self.first_result_at = monotonic()
        self._results.append(result)
        if len(self._results) == 1 or self.are_all_done():
            self._wakeup.set()
