"""The component of an XMPP server: connect, serve until the connection ends, pause, and connect again.

    server ──stanzas──▶ connection ──queue──▶ handler (a thread: decode, decide, one transaction) ──▶ answers ──▶ server
                                              ends of routes, once a second ───────────────────▶ announcements

A push is stored before it is answered. The workers send the stored pushes, so this process never waits for a gateway.
Any number of processes may run: one is connected, and the others stand by (`kit/processes/leader.py`).

The process that holds the lock saves the state of its connection for `/readyz` and the console. See docs/xmpp.md.
"""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from kit.http import doubled
from kit.processes.leader import wait
from kit.processes.status import StatusCache
from xmpp_bridge import metrics
from xmpp_bridge.connection import Address, Connection
from xmpp_bridge.handler import StanzaHandler

log = structlog.get_logger(__name__)

FIRST_SECONDS = 1.0
MAX_SECONDS = 60.0
# Errors that only an operator can correct: another component of our name, a wrong secret, a name that the server does
# not have. Frequent attempts do not help.
HOPELESS = frozenset({"conflict", "not-authorized", "host-unknown"})
# Failed connections in a row from which a conflict counts as hopeless. At a handover, the process that held the lock
# before may need 15 s to notice that it has lost it.
CONFLICTS_OF_HANDOVER = 4
NOTED_EVERY_SECONDS = 5.0
# How the last connection ended, or CONNECTED.
END = StatusCache("xmpp_component", str, ttl_seconds=20)
CONNECTED = "connected"
# The fault by how the last connection ended, for operators.
WORDS = {
    "conflict": "the XMPP server has another component of this name: stop that one",
    "not-authorized": "the XMPP server does not accept XMPP_COMPONENT_SECRET",
    "host-unknown": "the XMPP server has no component XMPP_COMPONENT_JID",
    "refused": "the XMPP server cannot be reached",
    "silent": "the XMPP server does not answer",
    "broken": "the service at XMPP_COMPONENT_HOST is no XMPP server",
    "stopped": "the component was stopped",
}
OTHERWISE = "the connection to the XMPP server was lost"
MISSING = "no component is running"


def read_fault() -> str:
    """Return why the component is not connected, or an empty text if it is, as saved a few seconds ago."""
    end = END.read()
    if end is None:
        return MISSING
    return "" if end == CONNECTED else WORDS.get(end, OTHERWISE)


@dataclass(slots=True)
class Backoff:
    """The pauses between connections: doubled each time, with jitter so that components do not connect all at once."""

    failures: int = 0

    def is_hopeless(self, end: str) -> bool:
        """Return whether only an operator can correct the error that ended the last connection."""
        return end in HOPELESS and (end != "conflict" or self.failures >= CONFLICTS_OF_HANDOVER)

    def pause(self, end: str, *, jitter: float) -> float:
        """Return the seconds to wait after a connection that ended with ``end``. ``jitter`` is in 0..1."""
        span = MAX_SECONDS if self.is_hopeless(end) else doubled(FIRST_SECONDS, self.failures, max_seconds=MAX_SECONDS)
        self.failures += 1
        return span * (1 - jitter / 4)


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
                    await wait(stopped, self._backoff.pause(end, jitter=random.random()))  # noqa: S311 - no secret
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
            await asyncio.to_thread(END.save, self._state)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._handler.close)

    async def _connect(self, stopped: asyncio.Event) -> str:
        end = await Connection(self._address, self._handler, self._thread, self._connected).run(stopped)
        metrics.CONNECTED.set(0)
        metrics.CONNECTIONS.labels(end).inc()
        self._show(end)
        log_line = log.error if self._backoff.is_hopeless(end) else log.info if end == "stopped" else log.warning
        log_line("xmpp_disconnected", end=end, hint=WORDS.get(end, OTHERWISE))
        return end

    def _connected(self) -> None:
        self._backoff.failures = 0
        self._show(CONNECTED)
        metrics.CONNECTED.set(1)
        log.info("xmpp_connected", domain=self._address.domain)

    def _show(self, state: str) -> None:
        self._state = state
        self._changed.set()

    async def _note(self) -> None:
        """Save the state whenever it changes, and every few seconds. While this task runs, nothing else saves it."""
        while True:
            self._changed.clear()
            await asyncio.to_thread(END.save, self._state)
            await wait(self._changed, NOTED_EVERY_SECONDS)
