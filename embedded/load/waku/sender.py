"""The sender of load requests: it publishes each at its moment, and measures what that costs the generator."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from waku_bridge.messages import WakuMessage
from waku_bridge.node import NodeError

Publish = Callable[[WakuMessage], Awaitable[None]]


@dataclass(slots=True)
class Shots:
    """The result of publishing. ``lags_ms`` are the delays of starts, and ``publish_ms`` the times that the node took.

    ``refused`` counts the requests that the node refused, by its error code. ``cpu_seconds`` is the CPU time of the
    whole process.
    """

    lags_ms: list[float] = field(default_factory=list)
    publish_ms: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    max_in_flight: int = 0


async def shoot(
    messages: Sequence[WakuMessage], due_ns: Sequence[int], publish: Publish, on_progress: Callable[[], None]
) -> Shots:
    """Publish each message when it is due. The loop is open: nothing waits for an answer, nor for the node."""
    shots = Shots()
    in_flight: set[asyncio.Task[None]] = set()
    cpu_started = time.process_time()
    started = time.monotonic()
    for message, at_ns in zip(messages, due_ns, strict=True):
        if (early := at_ns - time.time_ns()) > 0:
            await asyncio.sleep(early / 1e9)
        task = asyncio.create_task(_fire(message, at_ns, publish, shots))
        in_flight.add(task)
        task.add_done_callback(in_flight.discard)
        shots.max_in_flight = max(shots.max_in_flight, len(in_flight))
        on_progress()
        if early <= 0:
            await asyncio.sleep(0)  # too late: tasks in flight must still get to run
    await asyncio.gather(*in_flight)
    shots.cpu_seconds = time.process_time() - cpu_started
    shots.wall_seconds = time.monotonic() - started
    return shots


async def _fire(message: WakuMessage, at_ns: int, publish: Publish, shots: Shots) -> None:
    started_ns = time.time_ns()
    shots.lags_ms.append((started_ns - at_ns) / 1e6)
    try:
        await publish(message)
    except NodeError as error:
        shots.refused[error.code] = shots.refused.get(error.code, 0) + 1
    else:
        shots.publish_ms.append((time.time_ns() - started_ns) / 1e6)
