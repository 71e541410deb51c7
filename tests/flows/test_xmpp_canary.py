"""Command `manage.py xmpp_canary` against a whole server, with an XMPP server in this process: its output when all is
well, and when one part is missing.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

from embedded.stack.plan import manage
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.rig import server as processes
from tests.rig.peers import ask
from tests.rig.server import Fleet, NewFleet, wait_for_http, wait_until
from xmpp_bridge.tests.talking import SERVICE
from xmpp_bridge.tests.xmpp_server import SECRET, XmppServer

BRIDGE = "xmpp"
LAST = "SELECT {} FROM xmpp_bridge_canaryrun ORDER BY started_at DESC LIMIT 1"
LEFT = (
    *("xmpp_bridge_app", "xmpp_bridge_device", "xmpp_bridge_canarystanza", "registrations_route"),
    *("registrations_registrationevent", "notifications_notificationrequest", "notifications_notification"),
    "notifications_attempt",
)
NOTHING_LEFT = dict.fromkeys(LEFT, 0)

Run = Callable[..., tuple[int, str]]


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


@dataclass(frozen=True, slots=True)
class Service:
    """The push service, and the XMPP server that it is a component of."""

    fleet: Fleet
    xmpp: ServerThread

    def last(self, *columns: str) -> tuple[Any, ...]:
        return self.fleet.rows(LAST.format(", ".join(columns)))[0]

    def left(self) -> dict[str, int]:
        return {table: self.fleet.rows(f"SELECT count(*) FROM {table}")[0][0] for table in LEFT}

    def pushes(self) -> list[Any]:
        """Return the pushes that gorush got for Apple and Google."""
        return list(ask(self.fleet.environment["GORUSH_URL"], "GET", "/dev/pushes?limit=10000").body["pushes"])

    def start_bridge(self) -> None:
        before = self.xmpp.server.connections
        self.fleet.start(manage(BRIDGE, "run_xmpp_bridge", stop_order=StopOrder.FRONT))
        wait_until(lambda: self.xmpp.server.connections > before, what="the component is connected")


@pytest.fixture(scope="module")
def service(new_fleet: NewFleet) -> Iterator[Service]:
    xmpp = ServerThread()
    fleet = new_fleet(
        "xmpp_canary",
        GORUSH_TIMEOUT_SECONDS="2",
        XMPP_COMPONENT_JID=SERVICE,
        XMPP_COMPONENT_SECRET=SECRET,
        XMPP_COMPONENT_HOST="127.0.0.1",
        XMPP_COMPONENT_PORT=str(xmpp.port),
        # The canary is served although its domain is not allowed.
        XMPP_ALLOWED_DOMAINS="capulet.test",
        COLUMNS="120",
    )
    service = Service(fleet, xmpp)
    try:
        fleet.start(gorush(service), batches(service))
        service.start_bridge()
        wait_for_http(f"{fleet.environment['GORUSH_URL']}/healthz")
        yield service
    finally:
        fleet.stop(*fleet.running)
        xmpp.stop()


def gorush(service: Service) -> ProcessSpec:
    return processes.gorush(processes.port_of(service.fleet.environment["GORUSH_URL"]))


def batches(service: Service) -> ProcessSpec:
    return processes.services()["batches"]


@pytest.fixture
def canary(service: Service) -> Run:
    """Return a function that runs the canary and returns its exit code and output."""

    def run() -> tuple[int, str]:
        return service.fleet.run_to_end(manage("canary", "xmpp_canary", stop_order=StopOrder.FRONT), seconds=90)

    return run


@pytest.fixture
def without(service: Service) -> Iterator[Callable[[str], None]]:
    """Return a function that stops a part, which is started again afterwards."""
    stopped: list[str] = []

    def stop(name: str) -> None:
        if name == "routing":
            service.xmpp.server.does_route = False
        else:
            service.fleet.stop(name)
        stopped.append(name)

    yield stop
    for name in stopped:
        if name == "routing":
            service.xmpp.server.does_route = True
        elif name == BRIDGE:
            service.start_bridge()
        else:
            service.fleet.start({"batches": batches, "gorush": gorush}[name](service))
    wait_for_http(f"{service.fleet.environment['GORUSH_URL']}/healthz")


def test_every_link_is_timed_and_no_row_stays(service: Service, canary: Run) -> None:
    before = service.pushes()
    for _ in range(2):  # the second run meets the rows of the first one
        code, printed = canary()
        assert code == 0, printed
        assert len(re.findall(r"│\s+\d+ │", printed)) == 4
        assert "so its credentials, Apple and Google were not tested" in " ".join(printed.split())
        assert service.last("state", "cause", "broken_link", "device", "pseudonym") == ("passed", "", "", None, None)
        assert service.left() == NOTHING_LEFT
    assert service.pushes() == before


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("part", "link", "cause", "words"),
    [
        (BRIDGE, "register", "component", "the component was stopped"),
        ("routing", "register", "xmpp_server", "the XMPP server does not route to the component"),
        ("batches", "gateway", "worker", "no worker tries the push"),
        ("gorush", "gateway", "gateway", "the gateway does not take the push"),
    ],
)
def test_the_broken_link_is_named(
    service: Service, canary: Run, without: Callable[[str], None], part: str, link: str, cause: str, words: str
) -> None:
    without(part)
    code, printed = canary()
    assert code == 1
    assert words in " ".join(printed.split())
    assert service.last("state", "broken_link", "cause") == ("broken", link, cause)
    assert service.left() == NOTHING_LEFT


@pytest.mark.nightly
def test_a_killed_run_is_reported_and_cleared_away_by_the_next(
    service: Service, canary: Run, without: Callable[[str], None]
) -> None:
    without("batches")
    service.fleet.start(manage("killed", "xmpp_canary", stop_order=StopOrder.FRONT))
    pushed = "SELECT count(*) FROM notifications_notification"
    wait_until(lambda: service.fleet.rows(pushed) == [(1,)], what="the canary has pushed")
    service.fleet.kill("killed")
    assert canary() == (2, "CommandError: Another run of this canary is under way. Try again in a moment.\n")
    service.fleet.rows(
        "UPDATE xmpp_bridge_canaryrun SET started_at = started_at - interval '1 hour' WHERE finished_at IS NULL"
    )
    canary()
    assert service.left() == NOTHING_LEFT
    assert service.fleet.rows("SELECT count(*) FROM xmpp_bridge_canaryrun WHERE state = 'interrupted'") == [(1,)]
