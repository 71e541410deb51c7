"""Command `manage.py xmpp_canary` against a whole server, with an XMPP server in this process."""

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from embedded.stack.plan import manage
from embedded.supervisor.processes import StopOrder
from tests.rig import server as processes
from tests.rig.peers import ask
from tests.rig.server import Fleet, NewFleet, wait_for_http, wait_until
from xmpp_bridge.tests.talking import SERVICE
from xmpp_bridge.tests.xmpp_server import SECRET, XmppServer

LAST = "SELECT state, cause, broken_link, device, pseudonym FROM xmpp_bridge_canaryrun ORDER BY started_at DESC LIMIT 1"
EMPTY = (
    *("xmpp_bridge_app", "xmpp_bridge_device", "xmpp_bridge_canarystanza", "registrations_route"),
    *("registrations_registrationevent", "notifications_notificationrequest", "notifications_notification"),
    "notifications_attempt",
)


class ServerThread:
    """The XMPP server, on an event loop of its own."""

    def __init__(self) -> None:
        self._port: Future[int] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self.port = self._port.result(timeout=20)

    async def _serve(self) -> None:
        self.server = XmppServer()
        self.server.does_route = True
        self._stopped = asyncio.Event()
        async with self.server.serving() as address:
            self._port.set_result(address.port)
            await self._stopped.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(timeout=20)
        self._loop.close()


@pytest.fixture
def fleet(new_fleet: NewFleet) -> Iterator[Fleet]:
    """The server behind an XMPP server. The canary is served although its domain is not allowed."""
    xmpp = ServerThread()
    fleet = new_fleet(
        "xmpp_canary",
        GORUSH_TIMEOUT_SECONDS="2",
        XMPP_COMPONENT_JID=SERVICE,
        XMPP_COMPONENT_SECRET=SECRET,
        XMPP_COMPONENT_HOST="127.0.0.1",
        XMPP_COMPONENT_PORT=str(xmpp.port),
        XMPP_ALLOWED_DOMAINS="capulet.test",
        COLUMNS="120",
    )
    url = fleet.environment["GORUSH_URL"]
    try:
        bridge = manage("xmpp", "run_xmpp_bridge", stop_order=StopOrder.FRONT)
        fleet.start(processes.gorush(processes.port_of(url)), processes.services()["batches"], bridge)
        wait_until(lambda: xmpp.server.connections, what="the component is connected")
        wait_for_http(f"{url}/healthz")
        yield fleet
    finally:
        fleet.stop(*fleet.running)
        xmpp.stop()


def test_every_link_is_timed_and_no_row_stays(fleet: Fleet) -> None:
    for _ in range(2):  # the second run meets the rows of the first one
        code, printed = fleet.run_to_end(manage("canary", "xmpp_canary", stop_order=StopOrder.FRONT), seconds=90)
        assert code == 0, printed
        assert len(re.findall(r"│\s+\d+ │", printed)) == 4
        assert "so its credentials, Apple and Google were not tested" in " ".join(printed.split())
        assert fleet.rows(LAST) == [("passed", "", "", None, None)]
        assert [table for table in EMPTY if fleet.rows(f"SELECT 1 FROM {table}")] == []
    assert ask(fleet.environment["GORUSH_URL"], "GET", "/dev/pushes").body["pushes"] == []
