"""The cores over their connections: an app that sends a command and waits for its answer, and a server that runs on."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self
from xml.etree.ElementTree import Element

from xmpp_bridge.client import registering
from xmpp_bridge.client.connections import TIMEOUT_SECONDS, Component, Connection, new_id
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Answer, Device
from xmpp_bridge.client.user_server import Event, Route, Step, UserServer

TICK_SECONDS = 0.1


async def register(account: Connection, service: str, device: Device) -> Answer:
    """Register a device, or its new token.

    Raises TimeoutError.
    """
    return registering.read_answer(await account.ask(registering.register(service, device, new_id())))


async def unregister(account: Connection, service: str, device: Device) -> Answer:
    """Make the service forget a device.

    Raises TimeoutError.
    """
    return registering.read_answer(await account.ask(registering.unregister(service, device, new_id())))


class NotifyingServer:
    """A user's server, connected to the XMPP server of the push service as a component.

    Inside an `async with` it repeats notifications when they are due, and processes the answers.
    """

    def __init__(self, domain: str, secret: str, host: str, port: int) -> None:
        self.core = UserServer(domain, new_id)
        self.component = Component(domain, secret, host, port, self._take)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.component.connect()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticking
        await self.component.close()

    async def register(self, user: str, service: str, device: Device) -> Answer:
        """Register a device of one of the server's users, as if the user's client sent the command.

        Raises TimeoutError.
        """
        return await self._ask_for(user, registering.register(service, device, new_id()))

    async def unregister(self, user: str, service: str, device: Device) -> Answer:
        """Make the service forget a device of one of the server's users.

        Raises TimeoutError.
        """
        return await self._ask_for(user, registering.unregister(service, device, new_id()))

    async def _ask_for(self, user: str, request: Element) -> Answer:
        request.set("from", f"{user}@{self.core.domain}/app")
        return registering.read_answer(await self.component.ask(request))

    def notify(self, route: Route, notification: Notification) -> Sequence[Element]:
        """Send a notification, and return the stanzas sent: none along a route that is not enabled."""
        step = self.core.notify(route, notification, time.monotonic())
        self._carry_out(step)
        return step.stanzas

    async def next_event(self, *, timeout_seconds: float | None = TIMEOUT_SECONDS) -> Event:
        """Wait for the next event. ``timeout_seconds`` of None waits without a limit.

        Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_seconds):
            return await self._events.get()

    def _take(self, stanza: Element) -> None:
        self._carry_out(self.core.receive(stanza, time.monotonic()))

    def _carry_out(self, step: Step) -> None:
        for stanza in step.stanzas:
            self.component.send(stanza)
        for event in step.events:
            self._events.put_nowait(event)

    async def _tick(self) -> None:
        while not self.component.ended.is_set():
            self._carry_out(self.core.tick(time.monotonic()))
            await asyncio.sleep(TICK_SECONDS)
