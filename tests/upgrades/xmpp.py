"""Server of XMPP users that pushes through Prosody while the push service is replaced."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.interop.xmpp.service import Service
from tests.rig.load import Pushes, collapse_ids
from tests.rig.server import wait_until
from xmpp_bridge.messages import Dialect

# A third of the devices use XEP-0357, whose pushes are requests with an answer.
DEVICES = 90
RATE_PER_SECOND = 4
OVER_SECONDS = 120.0


@dataclass(slots=True)
class Traffic:
    """Steady requests of one server. A request without an answer is sent again."""

    service: Service
    sent: Pushes = field(default_factory=Pushes)
    is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send until the block ends, and then until every request has an answer."""
        sending = threading.Thread(target=lambda: asyncio.run(self._send()), name="user server")
        sending.start()
        try:
            wait_until(lambda: self.sent.at, what="the first XMPP push")
            yield
        finally:
            self.is_over.set()
            sending.join(OVER_SECONDS)

    async def _send(self) -> None:
        async with self.service.user_server() as server:
            await server.wait_for_service()
            routes = [route for route in await server.routes(DEVICES) if route.dialect is Dialect.XEP0357]
            await self.sent.send(server, routes, per_second=RATE_PER_SECOND, is_enough=lambda _: self.is_over.is_set())

    def judge(self) -> str:
        """Check that every request was acknowledged and is one push. Return the figures in a sentence."""
        sent, service = self.sent, self.service
        assert not sent.unanswered
        wait_until(lambda: len(collapse_ids(service.all_pushes())) >= len(sent.at), what="every XMPP push")
        arrived = collapse_ids(service.all_pushes())
        lost = [text for text in sent.at if text not in arrived]
        doubled = [text for text in sent.at if len(arrived.get(text, ())) > 1]
        assert (len(lost), len(doubled)) == (0, 0), f"{len(sent.at)} requests"
        return f"XMPP: {len(sent.at)} requests, {sent.repeated} sent again; none lost, none doubled"
