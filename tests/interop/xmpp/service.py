"""Push service as processes: the component at a real server, a worker, and gorush at the end."""

import asyncio
import os
import uuid
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Self
from xml.etree.ElementTree import Element

from embedded.stack.plan import manage
from embedded.supervisor.processes import ProcessSpec, StopOrder
from tests.interop.xmpp.peers import (
    LOOPBACK,
    SERVICE,
    SILENCE_SECONDS,
    TIMEOUT_SECONDS,
    USER_SERVER,
    USER_SERVER_SECRET,
    Peer,
)
from tests.rig import server as processes
from tests.rig.peers import ask
from tests.rig.server import Fleet
from xmpp_bridge.client.connections import NotifyingServer, new_id
from xmpp_bridge.client.elements import PING, element, iq
from xmpp_bridge.client.registering import Device, Platform, Registered
from xmpp_bridge.client.user_server import Event, Route
from xmpp_bridge.messages import Dialect

APP = "messenger"
BUNDLE = "im.messenger.test"
BRIDGE = "xmpp"
ADD_APP = """
    INSERT INTO xmpp_bridge_app (slug, app_topic, takes_firebase, style, text, sound, calls_as_alerts, passes_texts,
                                 refuses_texts, is_retired, created_at)
    VALUES (%s, %s, TRUE, 'generic', 'New message', 'default', FALSE, FALSE, FALSE, FALSE, now())
"""
POLL_SECONDS = 0.02
ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Service:
    """One service behind one server. ``fleet`` holds its processes; those of the XMPP server are in `peer.fleet`."""

    peer: Peer
    fleet: Fleet

    @property
    def gorush_url(self) -> str:
        return self.fleet.environment["GORUSH_URL"]

    def add_app(self, slug: str) -> None:
        self.fleet.rows(ADD_APP, slug, BUNDLE)

    def all_pushes(self) -> list[dict[str, Any]]:
        """Return all pushes that gorush got, including those for Status users."""
        return list(ask(self.gorush_url, "GET", "/dev/pushes?limit=1000000").body["pushes"])

    def pushes(self, device: Device) -> list[dict[str, Any]]:
        """Return the pushes that gorush got for a device."""
        tokens = {device.token, device.voip_token}
        return [push for push in self.all_pushes() if push["token"] in tokens]

    async def wait_for_pushes(self, device: Device, count: int = 1) -> list[dict[str, Any]]:
        """Wait for ``count`` pushes, and return all."""
        return await until(lambda: len(found := self.pushes(device)) >= count and found, what=f"{count} pushes")

    async def wait_for_push(self, device: Device) -> dict[str, Any]:
        [push] = await self.wait_for_pushes(device)
        return push

    async def has_no_more(self, device: Device, count: int = 0) -> bool:
        """Return whether there are exactly ``count`` pushes, after a while in which others would have come."""
        await asyncio.sleep(SILENCE_SECONDS)
        return len(self.pushes(device)) == count

    def user_server(self) -> "Neighbour":
        return Neighbour(USER_SERVER, USER_SERVER_SECRET, LOOPBACK, self.peer.component_port)

    def start_bridge(self, **environment: str) -> None:
        replace(self.fleet, environment={**self.fleet.environment, **environment}).start(bridge())

    async def wait_until_connected(self) -> None:
        """Send requests from the neighbouring component until the service itself answers. Its server answers before
        that.
        """
        async with self.user_server() as server:
            await server.wait_for_service()


class Neighbour(NotifyingServer):
    """Server of a user in the tests. ``confirmed`` are the ids of its requests that were answered with a result."""

    def __init__(self, domain: str, secret: str, host: str, port: int) -> None:
        super().__init__(domain, secret, host, port)
        self.confirmed: set[str] = set()

    def _take(self, stanza: Element) -> None:
        if (stanza.tag, stanza.get("type")) == ("iq", "result"):
            self.confirmed.add(stanza.get("id", ""))
        super()._take(stanza)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def next_event(self, *, timeout_seconds: float | None = TIMEOUT_SECONDS) -> Event:
        return await super().next_event(timeout_seconds=timeout_seconds)

    async def wait_for_service(self) -> None:
        await until_answered(lambda: self.component.ask(self.request("get", element("ping", PING))))

    def request(self, kind: str, *children: Any) -> Any:
        request = iq(kind, SERVICE, new_id(), *children)
        request.set("from", USER_SERVER)
        return request

    async def routes(self, count: int) -> list[Route]:
        """Register Android devices of new users, whose dialects alternate, and enable their routes."""
        return [await self.route(android(), dialect) for dialect in islice(cycle(Dialect), count)]

    async def route(self, device: Device, dialect: Dialect = Dialect.DRAFT, *, to: str = "") -> Route:
        """Register the device of a new user, and enable its route."""
        answer = await self.register(f"user-{uuid.uuid4().hex[:8]}", SERVICE, device)
        assert isinstance(answer, Registered), answer
        route = Route(to or answer.service, dialect, answer.client, answer.node, answer.secret)
        self.core.enable(route)
        return route


def android(fate: str = "") -> Device:
    return Device(Platform.FCM, f"{fate}{uuid.uuid4().hex}", uuid.uuid4().hex, APP)


def iphone() -> Device:
    return Device(Platform.APNS, os.urandom(32).hex(), uuid.uuid4().hex, APP, "production", os.urandom(32).hex())


def ciphertext(size: int = 120) -> str:
    return b64encode(os.urandom(size)).decode()


def iv() -> str:
    return b64encode(os.urandom(12)).decode()


async def until(find: Callable[[], Any], *, what: str, seconds: float = TIMEOUT_SECONDS) -> Any:
    """Wait until ``find`` returns something, and return it."""

    async def found() -> Any:
        return find()

    return await until_async(found, what=what, seconds=seconds)


async def until_async(find: Callable[[], Any], *, what: str, seconds: float = TIMEOUT_SECONDS) -> Any:
    try:
        async with asyncio.timeout(seconds):
            while not (found := await find()):  # noqa: ASYNC110 - another process signals no event
                await asyncio.sleep(POLL_SECONDS)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def until_answered(ask: Callable[[], Awaitable[Element]]) -> None:
    """Ask until the service itself answers. Before that its server answers with an error, once it has noticed that the
    component is missing, and not at all if it wrote into the connection of a dead one.
    """

    async def is_answered() -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                return (await ask()).get("type") == "result"
        return False

    await until_async(is_answered, what="the component is connected")


def bridge() -> ProcessSpec:
    return manage(BRIDGE, "run_xmpp_bridge", stop_order=StopOrder.FRONT)


def start(peer: Peer, fleet: Fleet) -> Service:
    service = Service(peer, fleet)
    service.add_app(APP)
    port = processes.port_of(service.gorush_url)
    fleet.start(processes.gorush(port), processes.services()["batches"], bridge())
    processes.wait_for_http(f"{service.gorush_url}/healthz")
    asyncio.run(service.wait_until_connected())
    return service
