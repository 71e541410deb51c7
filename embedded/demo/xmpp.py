"""The users of XMPP in the demonstration: their server notifies the phone of each in another dialect.

Rosaline's token is dead, so that the server forgets her route. Every line of the log has a user and what happened.
"""

import asyncio
import os
import random
import time
import uuid
from base64 import b64encode
from contextlib import suppress

import structlog

from notifications.messages import Grade
from xmpp_bridge.client.connections import ConnectionFailed, NotifyingServer
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Device, Platform, Registered
from xmpp_bridge.client.user_server import Disabled, Failed, Route, Stored
from xmpp_bridge.messages import Dialect

APP = "demo"
AWAY_SECONDS = 2.0
CIPHERTEXT_BYTES, IV_BYTES = 180, 12
# Shares of the grades, in percent.
GRADES = {Grade.NORMAL: 70, Grade.LOW: 20, Grade.VOIP: 10}

log = structlog.get_logger(__name__)


async def play(service: str, address: tuple[str, str, str, int], *, pause_seconds: float) -> None:
    """Notify the users until cancelled. While the XMPP server is unreachable, try again.

    ``service`` is the JID of the push service, and ``address`` are the arguments of the server's connection.
    """
    while True:
        try:
            async with NotifyingServer(*address) as server:
                users = {await _register(server, service, *user): user[0] for user in _users()}
                while not server.component.ended.is_set():
                    _notify(server, users)
                    await _log_events(server, users, pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - a pause
        except (ConnectionFailed, TimeoutError) as error:
            log.warning("xmpp_server_away", error=str(error) or "timeout")
        await asyncio.sleep(AWAY_SECONDS)


def _users() -> list[tuple[str, Device, Dialect]]:
    tokens = os.urandom(32).hex(), os.urandom(32).hex()
    iphone = Device(Platform.APNS, tokens[0], "demo-iphone", APP, "production", tokens[1])
    android, dead = (
        Device(Platform.FCM, f"{fate}{uuid.uuid4().hex}", f"demo-android-{fate}", APP) for fate in ("demo-", "dead-")
    )
    return [
        ("Benvolio", iphone, Dialect.MOD_PUSH2),
        ("Mercutio", android, Dialect.XEP0357),
        ("Rosaline", dead, Dialect.DRAFT),
    ]


async def _register(server: NotifyingServer, service: str, user: str, device: Device, dialect: Dialect) -> Route:
    """Register the phone of a user until the service accepts it, and return its enabled route."""
    started = time.monotonic()
    while not isinstance(answer := await server.register(user.lower(), service, device), Registered):
        log.warning("registration_refused", user=user, answer=str(answer))
        await asyncio.sleep(AWAY_SECONDS)
    log.info("registered", user=user, device=device.platform.value, ms=round((time.monotonic() - started) * 1000))
    route = Route(answer.service, dialect, answer.client, answer.node, answer.secret)
    server.core.enable(route)
    return route


def _notify(server: NotifyingServer, users: dict[Route, str]) -> None:
    route, user = random.choice([*users.items()])  # noqa: S311 - anybody
    [grade] = random.choices([*GRADES], [*GRADES.values()])  # noqa: S311 - anything
    iv = "" if route.dialect is Dialect.MOD_PUSH2 else b64encode(os.urandom(IV_BYTES)).decode()
    if server.notify(route, Notification(grade, b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), iv)):
        log.info("notified", user=user, dialect=route.dialect.value, grade=grade.value)


async def _log_events(server: NotifyingServer, users: dict[Route, str], seconds: float) -> None:
    """Log for this time what the service answers. Only XEP-0357 has an answer when all is well."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                match await server.next_event(timeout_seconds=None):
                    case Stored():
                        log.info("stored")
                    case Disabled(route):
                        log.info("route_disabled", user=users[route], dialect=route.dialect.value)
                    case Failed(_, refusal):
                        log.info("refused", answer=str(refusal))
