"""A user's server with Push 2.0, which no Debian package offers: encrypted messages, and calls."""

import asyncio
import os
import random
import uuid
from base64 import b64encode

import structlog

from notifications.messages import Grade
from xmpp_bridge.client.connections import ConnectionFailed, NotifyingServer
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Device, Platform, Registered
from xmpp_bridge.client.user_server import Disabled, Failed, Route
from xmpp_bridge.messages import Dialect

AWAY_SECONDS = 2.0
CIPHERTEXT_BYTES = 180
IV_BYTES = 12
# Shares of the grades, in percent.
GRADES = {Grade.NORMAL: 70, Grade.LOW: 20, Grade.VOIP: 10}

log = structlog.get_logger(__name__)


class DemoUserServer:
    """A server with a few users. ``pause_seconds`` is the average time between two notifications.

    ``address`` are the arguments of its connection.
    """

    def __init__(self, address: tuple[str, str, str, int], service: str, *, app: str, pause_seconds: float) -> None:
        self._address = address
        self._service = service
        self._app = app
        self._pause_seconds = pause_seconds

    async def live(self) -> None:
        """Play until cancelled. While the XMPP server is unreachable, try again."""
        while True:
            server = NotifyingServer(*self._address)
            try:
                async with server:
                    await self._play(server)
            except (ConnectionFailed, TimeoutError) as error:
                log.warning("xmpp_server_away", error=str(error) or "timeout")
            await asyncio.sleep(AWAY_SECONDS)

    async def _play(self, server: NotifyingServer) -> None:
        routes = [
            await self._register(server, "benvolio", self._iphone(), Dialect.MOD_PUSH2),
            await self._register(server, "mercutio", self._android(), Dialect.DRAFT),
            await self._register(server, "rosaline", self._android("dead-"), Dialect.DRAFT),
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(_show(server))
            while not server.component.ended.is_set():
                _notify(server, random.choice(routes))  # noqa: S311 - anybody
                await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - a pause
            raise ConnectionFailed("the connection ended")

    async def _register(self, server: NotifyingServer, user: str, device: Device, dialect: Dialect) -> Route:
        while not isinstance(answer := await server.register(user, self._service, device), Registered):
            log.warning("registration_refused", user=user, answer=str(answer))
            await asyncio.sleep(AWAY_SECONDS)
        log.info("registered", user=user, device=device.platform.value, dialect=dialect.value)
        route = Route(answer.service, dialect, client=answer.client)
        server.core.enable(route)
        return route

    def _iphone(self) -> Device:
        calls = os.urandom(32).hex()
        return Device(Platform.APNS, os.urandom(32).hex(), "demo-iphone", self._app, "production", calls)

    def _android(self, fate: str = "") -> Device:
        return Device(Platform.FCM, f"{fate}{uuid.uuid4().hex}", f"demo-android-{fate}", self._app)


def _notify(server: NotifyingServer, route: Route) -> None:
    [grade] = random.choices(tuple(GRADES), tuple(GRADES.values()))  # noqa: S311 - anything
    iv = b64encode(os.urandom(IV_BYTES)).decode() if route.dialect is Dialect.DRAFT else ""
    notification = Notification(grade, b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), iv)
    if server.notify(route, notification):
        log.info("notified", dialect=route.dialect.value, grade=grade.value)


async def _show(server: NotifyingServer) -> None:
    """Log the events from the service."""
    while True:
        match await server.next_event(timeout_seconds=None):
            case Disabled(route):
                log.info("route_disabled", dialect=route.dialect.value)
            case Failed(_, refusal):
                log.info("refused", answer=str(refusal))
