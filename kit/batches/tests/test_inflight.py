"""Tests of what is in flight: a send counts until its result is recorded, which wakes the worker."""

import asyncio
import select
from collections.abc import Callable
from functools import partial

from kit.batches.batch import Wakeup
from kit.batches.inflight import InFlight
from kit.http import submit

TIMEOUT_SECONDS = 20.0


async def send(number: int, until: asyncio.Event | None = None) -> int:
    if until:
        await until.wait()
    return number


def is_woken(wakeup: Wakeup, seconds: float = TIMEOUT_SECONDS) -> bool:
    readable, _, _ = select.select([wakeup], [], [], seconds)
    if readable:
        wakeup.clear()
    return bool(readable)


def on_loop(call: Callable[[], None]) -> None:
    async def do() -> None:
        call()

    submit(do()).result()


def test_results_stay_until_they_are_recorded() -> None:
    in_flight: InFlight[int] = InFlight(Wakeup())
    in_flight.start([partial(send, number) for number in (1, 2, 3)])
    while not in_flight.are_all_done():
        pass
    assert (in_flight.peek(2), in_flight.peek(2), in_flight.under_way) == ([1, 2], [1, 2], 3)
    in_flight.recorded(2)
    assert (in_flight.peek(9), in_flight.under_way, in_flight.are_all_done()) == ([3], 1, True)
    in_flight.recorded(1)
    assert not in_flight.has_results()


def test_the_first_result_wakes_the_worker_and_so_does_the_last() -> None:
    wakeup, first, other, last = Wakeup(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    in_flight: InFlight[int] = InFlight(wakeup)
    in_flight.start([partial(send, number, event) for number, event in enumerate((first, other, last))])
    assert not is_woken(wakeup, 0.05)
    on_loop(first.set)
    assert is_woken(wakeup)
    on_loop(other.set)
    assert not is_woken(wakeup, 0.05)  # results are gathered, because a commit costs more than a send
    on_loop(last.set)
    assert is_woken(wakeup)
    assert in_flight.peek(9) == [0, 1, 2]


def test_tasks_of_completed_sends_are_forgotten() -> None:
    in_flight: InFlight[int] = InFlight(Wakeup())
    for number in range(10):
        in_flight.start([partial(send, number)])
    while not in_flight.are_all_done():
        pass
    on_loop(lambda: None)  # callbacks of the last task come after its result
    assert in_flight._tasks == set()
