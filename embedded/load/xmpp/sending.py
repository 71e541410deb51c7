"""The sender of notifications: it sends each at its moment, and notes the answers."""

import asyncio
import os
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice

from notifications.messages import Grade
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.session import NotifyingServer
from xmpp_bridge.client.user_server import Failed, Route, Stored
from xmpp_bridge.messages import Dialect

CIPHERTEXT_BYTES = 150
IV_BYTES = 12


@dataclass(slots=True)
class Sent:
    """The result of sending. ``due_ns`` has the due moment of each notification by its ciphertext.

    ``asked_ns`` has the due moments by id, for notifications that get an answer, and ``stored_ns`` when the answers
    came. ``lags_ms`` are the delays of sending. ``refused`` counts errors by their condition, and ``cpu_seconds`` is
    the CPU time of the whole process.
    """

    due_ns: dict[str, int] = field(default_factory=dict)
    asked_ns: dict[str, int] = field(default_factory=dict)
    stored_ns: list[tuple[str, int]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    lags_ms: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    all_answered: asyncio.Event = field(default_factory=asyncio.Event)


async def send(
    server: NotifyingServer,
    routes: Sequence[Route],
    *,
    rate: float,
    seconds: float,
    drain_seconds: float,
    on_progress: Callable[[], None],
) -> Sent:
    """Send notifications along the routes in turn, and wait for the missing answers."""
    sent = Sent()
    sent.all_answered.set()
    noting = asyncio.create_task(_note_answers(server, sent))
    cpu_started = time.process_time()
    begin_ns = time.time_ns()
    for number, route in enumerate(islice(cycle(routes), round(rate * seconds))):
        due_ns = begin_ns + round(number * 1e9 / rate)
        # Also for a late one: tasks in flight must still get to run.
        await asyncio.sleep(max(0, due_ns - time.time_ns()) / 1e9)
        _send_one(server, route, due_ns, sent)
        on_progress()
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_seconds):
            await sent.all_answered.wait()
    noting.cancel()
    sent.cpu_seconds = time.process_time() - cpu_started
    return sent


def _send_one(server: NotifyingServer, route: Route, due_ns: int, sent: Sent) -> None:
    iv = "" if route.dialect is Dialect.MOD_PUSH2 else b64encode(os.urandom(IV_BYTES)).decode()
    notification = Notification(Grade.NORMAL, b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), iv)
    sent.lags_ms.append((time.time_ns() - due_ns) / 1e6)
    for stanza in server.notify(route, notification):
        sent.due_ns[notification.ciphertext] = due_ns
        if route.dialect is Dialect.XEP0357:
            sent.asked_ns[stanza.get("id", "")] = due_ns
            sent.all_answered.clear()


async def _note_answers(server: NotifyingServer, sent: Sent) -> None:
    answered: set[str] = set()
    while True:
        event = await server.next_event(timeout_seconds=None)
        match event:
            case Stored(identifier):
                sent.stored_ns.append((identifier, time.time_ns()))
            case Failed(identifier, refusal):
                sent.refused[str(refusal)] = sent.refused.get(str(refusal), 0) + 1
            case _:
                continue
        answered.add(identifier)
        if sent.asked_ns.keys() <= answered:
            sent.all_answered.set()
