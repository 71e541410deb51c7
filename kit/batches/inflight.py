"""In-flight sends of a process: started by a batch, done on the event loop, kept until a later batch has recorded them.

    batch ──commit──▶ start ──▶ one task each on the loop ──▶ results ──wakes the worker──▶ peek ──commit──▶ recorded

No batch waits for a send. A result that is not recorded stays, so a batch that was rolled back finds it again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from kit.batches.batch import Wakeup
from kit.http.connections import call_on_loop

T = TypeVar("T")
# A result that cannot be recorded yet is tried again after this.
PUT_OFF_SECONDS = 10
Timer = asyncio.TimerHandle
# It never raises: what went wrong is its result, also when the timeout cancels it.
Send = Callable[[], Coroutine[Any, Any, T]]


class InFlight(Generic[T]):
    """The sends of one kind. ``timeout_seconds`` is how long one may take; without it a send ends itself in time."""

    def __init__(self, wakeup: Wakeup, *, timeout_seconds: float | None = None) -> None:
        self._wakeup = wakeup
        self._timeout_seconds = timeout_seconds
        self._results: deque[T] = deque()  # the loop appends, batches take away
        self._under_way = 0  # counted by the thread of the batches
        self._tasks: set[asyncio.Task[None]] = set()  # touched by the loop only
        self.first_result_at = 0.0  # monotonic; of the results that wait

    def start(self, sends: Sequence[Send[T]]) -> None:
        """Start sending. It is called after the commit that says so."""
        if sends:
            self._under_way += len(sends)
            call_on_loop(self._start, sends)

    @property
    def under_way(self) -> int:
        """Return how many sends have no recorded result."""
        return self._under_way

    def has_results(self) -> bool:
        """Return whether a batch can record something."""
        return bool(self._results)

    def are_all_done(self) -> bool:
        """Return whether nothing is on its way any more."""
        return len(self._results) == self._under_way

    def peek(self, limit: int) -> list[T]:
        """Return the oldest results. They stay until they are `recorded`."""
        return list(islice(self._results, limit))

    def recorded(self, count: int) -> None:
        """Forget the oldest results, because they are stored."""
        for _ in range(count):
            self._results.popleft()
        self._under_way -= count
        self.first_result_at = monotonic()

    def put_off(self, count: int) -> None:
        """Have the oldest results come again some seconds later."""
        call_on_loop(self._come_later, [self._results.popleft() for _ in range(count)])

    def _come_later(self, results: Sequence[T]) -> None:
        for result in results:
            asyncio.get_running_loop().call_later(PUT_OFF_SECONDS, self._arrive, result)

    def _start(self, sends: Sequence[Send[T]]) -> None:
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._send(send)) for send in sends}
        # One timer serves all of them. A client's own timeout starts over with every byte that trickles in.
        timer = loop.call_later(self._timeout_seconds, _cancel_all, tasks) if self._timeout_seconds else None
        self._tasks |= tasks  # the loop itself keeps no task alive
        for task in tasks.copy():
            task.add_done_callback(lambda done: self._forget(done, tasks, timer))

    def _forget(self, done: "asyncio.Task[None]", tasks: "set[asyncio.Task[None]]", timer: Timer | None) -> None:
        self._tasks.discard(done)
        tasks.discard(done)
        if timer and not tasks:
            timer.cancel()

    async def _send(self, send: Send[T]) -> None:
        self._arrive(await send())

    def _arrive(self, result: T) -> None:
        if not self._results:
            self.first_result_at = monotonic()
        self._results.append(result)
        if len(self._results) == 1 or self.are_all_done():
            self._wakeup.set()


def _cancel_all(tasks: "set[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
