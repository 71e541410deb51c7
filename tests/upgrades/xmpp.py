"""Server of XMPP users that pushes through Prosody while the push service is replaced."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from xml.etree.ElementTree import Element

from embedded.load.xmpp import register_devices
from tests.flows.fleet import wait_until
from tests.interop.xmpp.peers import SERVICE
from tests.interop.xmpp.service import APP, Neighbour, Service, ciphertext, iv
from xmpp_bridge.client import Grade, Notification, Route, Stored
from xmpp_bridge.messages import Dialect

# A third of the devices use XEP-0357, whose pushes are requests with an answer.
DEVICES = 90
PAUSE_SECONDS = 0.25
# Seconds after which a request without an answer is sent again under its id.
ANSWER_SECONDS = 5.0
OVER_SECONDS = 120.0


@dataclass(slots=True)
class Traffic:
    """Requests by id: ``carried`` has their ciphertexts, ``waiting`` those without an answer and the monotonic time of
    their last sending, ``repeated`` those that were sent more than once.
    """

    service: Service
    carried: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, tuple[float, Element]] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send until the block ends, and then until every request has an answer."""
        sending = threading.Thread(target=lambda: asyncio.run(self._send()), name="user server")
        sending.start()
        try:
            wait_until(lambda: self.carried, what="the first XMPP push")
            yield
        finally:
            self.is_over.set()
            sending.join(OVER_SECONDS)

    async def _send(self) -> None:
        async with self.service.user_server() as server:
            await server.wait_for_service()
            devices = await register_devices(server, SERVICE, DEVICES, app=APP, on_progress=lambda: None)
            noting = asyncio.create_task(self._note(server))
            for route in cycle([route for route, _ in devices if route.dialect is Dialect.XEP0357]):
                if self.is_over.is_set():
                    break
                self._push(server, route)
                self._repeat(server)
                await asyncio.sleep(PAUSE_SECONDS)
            while self.waiting:
                self._repeat(server)
                await asyncio.sleep(PAUSE_SECONDS)
            noting.cancel()

    def _push(self, server: Neighbour, route: Route) -> None:
        notification = Notification(Grade.NORMAL, ciphertext(), iv())
        for stanza in server.notify(route, notification):
            identifier = stanza.get("id", "")
            self.carried[identifier] = notification.ciphertext
            self.waiting[identifier] = (time.monotonic(), stanza)

    def _repeat(self, server: Neighbour) -> None:
        now = time.monotonic()
        for identifier, (at, stanza) in list(self.waiting.items()):
            if now - at > ANSWER_SECONDS:
                self.waiting[identifier] = (now, stanza)
                self.repeated.add(identifier)
                server.component.send(stanza)

    async def _note(self, server: Neighbour) -> None:
        while True:
            event = await server.next_event(timeout_seconds=None)
            if isinstance(event, Stored):
                self.waiting.pop(event.identifier, None)

    def judge(self) -> str:
        """Check that every request was acknowledged and is one push. Return the figures in a sentence."""
        assert not self.waiting
        wait_until(lambda: len(self._arrived()) >= len(self.carried), what="every XMPP push")
        arrived = self._arrived()
        lost = [each for each in self.carried.values() if not arrived[each]]
        doubled = [each for each in self.carried.values() if arrived[each] > 1]
        assert (len(lost), len(doubled)) == (0, 0), f"{len(self.carried)} requests"
        return f"XMPP: {len(self.carried)} requests, {len(self.repeated)} of them sent again; none lost, none doubled"

    def _arrived(self) -> Counter[str]:
        pushes = [push for push in self.service.all_pushes() if not push["error"]]
        return Counter(push["data"]["e"] for push in pushes if "e" in push["data"])
