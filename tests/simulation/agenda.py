"""Simulated time, and event loops that live in it: nothing waits, and the next entry of an agenda runs at once.

    agenda: (when, number, owner, function) ──▶ time moves to `when` ──▶ the function runs in the process `owner` ──▶ …

Everything that the server would leave to the clock, to another thread or to the network is an entry of one agenda. So a
run has one order, and its seed alone decides it.
"""

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


class Owner(Protocol):
    """A process of the simulation, in which entries of the agenda run."""

    is_alive: bool


class Agenda:
    """Future calls, in order of time, and the current time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._entries: list[tuple[float, int, Owner | None, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def now_ns(self) -> int:
        return round(self.now().timestamp() * 10**6) * 1000

    def monotonic(self) -> float:
        """Return the monotonic clock of all processes. As on a real machine, it does not begin at zero."""
        return 1000.0 + self.seconds

    def add(self, after_seconds: float, call: Callable[[], object], owner: Owner | None = None) -> None:
        """Make a call later, unless its process is dead by then."""
        at = self.seconds + max(after_seconds, 0.0)
        heapq.heappush(self._entries, (at, next(self._numbers), owner, call))

    def next(self) -> tuple[Owner | None, Callable[[], object]] | None:
        """Move the time to the next entry and return it. Return None when no entry is left."""
        while self._entries:
            at, _, owner, call = heapq.heappop(self._entries)
            if owner is None or owner.is_alive:
                self.seconds = max(self.seconds, at)
                return owner, call
        return None


class Loop(asyncio.AbstractEventLoop):
    """Event loop of one simulated process, with the methods that the server uses."""

    def __init__(self, agenda: Agenda, owner: Owner, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._agenda = agenda
        self._owner = owner
        self._run = run  # runs a function as a thread of the process would
        self.faults: list[dict[str, Any]] = []

    def time(self) -> float:
        return self._agenda.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        return self._put(0.0, asyncio.Handle(callback, args, self, context))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._put(when - self.time(), handle)
        return handle

    def _put(self, delay: float, handle: asyncio.Handle) -> asyncio.Handle:
        self._agenda.add(delay, lambda: self._handle(handle), self._owner)
        return handle

    def _handle(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled entry is skipped when its time comes."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        """Run at once the function that a thread would run. Other entries run before the awaiting task gets
        the result.
        """
        future = self.create_future()
        asyncio._set_running_loop(None)
        try:
            result = self._run(lambda: func(*args))
        except Exception as error:  # noqa: BLE001 - raised to the awaiting task
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            asyncio._set_running_loop(self)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._owner.is_alive:
            self.faults.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
