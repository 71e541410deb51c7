"""The loop of the component: connect, serve until the connection ends, pause, and connect again."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import structlog

from xmpp_bridge.component import status
from xmpp_bridge.component.backoff import Backoff
from xmpp_bridge.component.connection import Address, Connection
from xmpp_bridge.component.handler import StanzaHandler
from xmpp_bridge.metrics import CONNECTED, CONNECTIONS

log = structlog.get_logger(__name__)


class Component:
    """The component of one XMPP server."""

    def __init__(self, address: Address, stanza_handler: StanzaHandler) -> None:
        self._address = address
        self._handler = stanza_handler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="xmpp-handler")
        self._backoff = Backoff()
        self._state = "refused"
        self._changed = asyncio.Event()

    async def run(self, stopped: asyncio.Event) -> None:
        """Keep a connection until ``stopped`` is set."""
        noting = asyncio.create_task(self._note())
        try:
            while not stopped.is_set():
                end = await self._connect(stopped)
                if not stopped.is_set():
                    await _wait(stopped, self._backoff.pause(end, jitter=random.random()))  # noqa: S311 - no secret
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
            await asyncio.to_thread(status.END.save, self._state)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._handler.close)

    async def _connect(self, stopped: asyncio.Event) -> str:
        end = await Connection(self._address, self._handler, self._thread, self._connected).run(stopped)
        CONNECTED.set(0)
        CONNECTIONS.labels(end).inc()
        self._show(end)
        log_line = log.error if self._backoff.is_hopeless(end) else log.info if end == "stopped" else log.warning
        log_line("xmpp_disconnected", end=end, hint=status.WORDS.get(end, status.OTHERWISE))
        return end

    def _connected(self) -> None:
        self._backoff.succeeded()
        self._show(status.CONNECTED)
        CONNECTED.set(1)
        log.info("xmpp_connected", domain=self._address.domain)

    def _show(self, state: str) -> None:
        self._state = state
        self._changed.set()

    async def _note(self) -> None:
        """Save the state whenever it changes, and every few seconds. While this task runs, nothing else saves it."""
        while True:
            self._changed.clear()
            await asyncio.to_thread(status.END.save, self._state)
            await _wait(self._changed, status.NOTED_EVERY_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
