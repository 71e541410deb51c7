"""The load generator through XMPP: devices of the users of a server of its own. See `load`.

Each notification has a ciphertext of its own, which identifies it at gorush. The dialects alternate.
"""

import asyncio
import os
import time
import uuid
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice

from embedded.load import (
    Arrival,
    Generator,
    PushRecord,
    Result,
    arrivals,
    judge_when_recorded,
    send_on_time,
)
from notifications.messages import Grade
from xmpp_bridge.client.connections import NotifyingServer
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Device, Platform, Registered
from xmpp_bridge.client.user_server import Failed, Route, Stored
from xmpp_bridge.messages import Dialect

REGISTER_AT_ONCE = 20
CIPHERTEXT_BYTES, IV_BYTES = 150, 12


class NotRegisteredError(Exception):
    """The service refused a device. The text is its reason."""


@dataclass(frozen=True, slots=True)
class XmppLoad:
    """A load on a push service, by a server whose users have phones with a route of one dialect each."""

    server: NotifyingServer
    service: str
    app: str = ""

    async def register(self, count: int) -> list[Route]:
        """Register new Android phones, each of a user of its own, and return their routes, which are enabled.

        Raises NotRegisteredError, or TimeoutError.
        """
        free = asyncio.Semaphore(REGISTER_AT_ONCE)

        async def register(dialect: Dialect) -> Route:
            device = Device(Platform.FCM, f"load{uuid.uuid4().hex}", uuid.uuid4().hex, self.app)
            async with free:
                answer = await self.server.register(device.device_id, self.service, device)
            if not isinstance(answer, Registered):
                raise NotRegisteredError(str(answer))
            route = Route(answer.service, dialect, answer.client, answer.node, answer.secret)
            self.server.core.enable(route)
            return route

        return await asyncio.gather(*(register(dialect) for dialect in islice(cycle(Dialect), count)))

    async def run(
        self, routes: Sequence[Route], record: PushRecord, *, rate: float, seconds: float, drain_seconds: float
    ) -> Result:
        """Send notifications along the routes in turn, ``rate`` per second, and wait for what is missing."""
        await record.skip()
        count = max(1, round(rate * seconds))
        notifications = [(route, _notification(route)) for route in islice(cycle(routes), count)]
        begin_ns = time.time_ns()
        due_ns = [begin_ns + round(number * 1e9 / rate) for number in range(count)]
        due_of = {each.ciphertext: at_ns for (_, each), at_ns in zip(notifications, due_ns, strict=True)}
        answers = _Answers(self.server)
        noting = asyncio.create_task(answers.note())
        sent = await send_on_time(notifications, due_ns, answers.ask)
        deadline = time.monotonic() + drain_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await answers.all_arrived.wait()
        noting.cancel()
        return await judge_when_recorded(
            record, lambda pushes: _evaluate(answers, due_of, Generator.of(sent, count), pushes), deadline=deadline
        )


class _Answers:
    """The notifications that were sent, and the answers to those that get one."""

    def __init__(self, server: NotifyingServer) -> None:
        self._server = server
        self.sent: list[str] = []  # ciphertexts
        self.asked: dict[str, str] = {}  # the ciphertext by the id of the stanza
        self.stored: list[Arrival] = []
        self.refused: Counter[str] = Counter()  # by condition
        self.all_arrived = asyncio.Event()
        self.all_arrived.set()

    async def ask(self, item: tuple[Route, Notification]) -> None:
        route, notification = item
        for stanza in self._server.notify(route, notification):
            self.sent.append(notification.ciphertext)
            if route.dialect is Dialect.XEP0357:
                self.asked[stanza.get("id", "")] = notification.ciphertext
                self.all_arrived.clear()

    async def note(self) -> None:
        """Note the answers until cancelled."""
        answered: set[str] = set()
        while True:
            match await self._server.next_event(timeout_seconds=None):
                case Stored(identifier):
                    self.stored.append((identifier, time.time_ns()))
                case Failed(identifier, refusal):
                    self.refused[str(refusal)] += 1
                case _:
                    continue
            answered.add(identifier)
            if self.asked.keys() <= answered:
                self.all_arrived.set()


def _notification(route: Route) -> Notification:
    iv = "" if route.dialect is Dialect.MOD_PUSH2 else b64encode(os.urandom(IV_BYTES)).decode()
    return Notification(Grade.NORMAL, b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), iv)


def _evaluate(
    answers: _Answers, due_of: Mapping[str, int], generator: Generator, pushes: Sequence[Arrival] | None
) -> Result:
    due_ns = {ciphertext: due_of[ciphertext] for ciphertext in answers.sent}
    asked_ns = {identifier: due_of[ciphertext] for identifier, ciphertext in answers.asked.items()}
    return Result(
        requests=len(due_ns),
        pushes=None if pushes is None else arrivals(due_ns, pushes),
        replies=arrivals(asked_ns, answers.stored),
        merged=0,
        refused=dict(answers.refused),
        generator=generator,
    )
