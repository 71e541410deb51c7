"""The sender of load requests: it publishes each at its moment, and measures what that costs the generator."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from waku_bridge.messages import WakuMessage
from waku_bridge.node import NodeError

Publish = Callable[[WakuMessage], Awaitable[None]]


@dataclass(slots=True)
class Sent:
    """The result of publishing. ``lags_ms`` are the delays of starts, and ``publish_ms`` the times that the node took.

    ``refused`` counts the requests that the node refused, by its error code, and ``not_sent`` has their numbers.
    ``cpu_seconds`` is the CPU time of the whole process.
    """

    lags_ms: list[float] = field(default_factory=list)
    publish_ms: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    not_sent: list[int] = field(default_factory=list)
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    max_in_flight: int = 0


async def publish_on_time(
    messages: Sequence[WakuMessage], due_ns: Sequence[int], publish: Publish, on_progress: Callable[[], None]
) -> Sent:
    """Publish each message when it is due. The loop is open: nothing waits for an answer, nor for the node."""
    sent = Sent()
    in_flight: set[asyncio.Task[None]] = set()
    cpu_started = time.process_time()
    started = time.monotonic()
    for number, (message, at_ns) in enumerate(zip(messages, due_ns, strict=True)):
        if (early := at_ns - time.time_ns()) > 0:
            await asyncio.sleep(early / 1e9)
        task = asyncio.create_task(_publish(number, message, at_ns, publish, sent))
        in_flight.add(task)
        task.add_done_callback(in_flight.discard)
        sent.max_in_flight = max(sent.max_in_flight, len(in_flight))
        on_progress()
        if early <= 0:
            await asyncio.sleep(0)  # too late: tasks in flight must still get to run
    await asyncio.gather(*in_flight)
    sent.cpu_seconds = time.process_time() - cpu_started
    sent.wall_seconds = time.monotonic() - started
    return sent


async def _publish(number: int, message: WakuMessage, at_ns: int, publish: Publish, sent: Sent) -> None:
    started_ns = time.time_ns()
    sent.lags_ms.append((started_ns - at_ns) / 1e6)
    try:
        await publish(message)
    except NodeError as error:
        sent.refused[error.code] = sent.refused.get(error.code, 0) + 1
        sent.not_sent.append(number)
    else:
        sent.publish_ms.append((time.time_ns() - started_ns) / 1e6)
