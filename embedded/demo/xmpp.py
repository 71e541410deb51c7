"""The users of XMPP in the demonstration: two who write to each other, and a server whose users have phones, too.

One of the two writes while the other is offline, so that the phone gets a push. The server speaks Push 2.0. Every line
of the log has a user and what happened.
"""

import asyncio
import os
import random
import time
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from xml.etree.ElementTree import Element

import structlog

from notifications.messages import Grade
from xmpp_bridge.client.connections import Account, ConnectionFailed, NotifyingServer, new_id, register
from xmpp_bridge.client.elements import element, text_at
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Answer, Device, Platform, Registered, enable_xep0357
from xmpp_bridge.client.user_server import Disabled, Failed, Route
from xmpp_bridge.messages import Dialect

APP = "demo"
PASSWORD = "any"  # noqa: S105 - the server of the demonstration takes all
LINES = (
    "Wherefore art thou, Romeo?",
    "Parting is such sweet sorrow.",
    "My bounty is as boundless as the sea.",
    "Thus with a kiss I die.",
)
AWAY_SECONDS = 2.0
# Longer than wake-ups of one device are delayed.
PUSH_SECONDS, POLL_SECONDS = 10.0, 0.02
CIPHERTEXT_BYTES, IV_BYTES = 180, 12
# Shares of the grades, in percent.
GRADES = {Grade.NORMAL: 70, Grade.LOW: 20, Grade.VOIP: 10}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """What all users share: the push service, and the average number of seconds between two events.

    ``last_push`` returns the id of the newest push to a device token since the push with another id, or that one. It
    returns None when no record is kept.
    """

    jid: str
    pause_seconds: float
    last_push: Callable[[str, int], Awaitable[int | None]]

    async def register(self, user: str, device: Device, send: Callable[[], Awaitable[Answer]]) -> Registered:
        """Send the registration of a device until it is accepted."""
        started = time.monotonic()
        while not isinstance(answer := await send(), Registered):
            log.warning("registration_refused", user=user, answer=str(answer))
            await asyncio.sleep(AWAY_SECONDS)
        log.info("registered", user=user, device=device.platform.value, ms=_ms_since(started))
        return answer

    async def pause(self) -> None:
        await asyncio.sleep(self.pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - a pause


async def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Play a scene until cancelled. While the XMPP server is unreachable, try again."""
    while True:
        try:
            await scene()
        except (ConnectionFailed, TimeoutError) as error:
            log.warning("xmpp_server_away", error=str(error) or "timeout")
        await asyncio.sleep(AWAY_SECONDS)


# Two users who write to each other ------------------------------------------------------------------------------------


class User:
    """A user with a phone, of a server that listens for clients on a ``port`` of this machine."""

    def __init__(self, name: str, domain: str, port: int) -> None:
        self.name = name
        self.jid = f"{name.lower()}@{domain}"
        self.device = android(f"demo-{name}")
        self.last_push = 0
        self._port = port

    @asynccontextmanager
    async def online(self) -> AsyncIterator[tuple[Account, "asyncio.Queue[Element]"]]:
        """Connect, and yield the connection with the messages that have a body."""
        messages: asyncio.Queue[Element] = asyncio.Queue()

        def take(stanza: Element) -> None:
            if stanza.tag == "message" and text_at(stanza, "body"):
                messages.put_nowait(stanza)

        async with Account(f"{self.jid}/phone", PASSWORD, "127.0.0.1", self._port, take) as account:
            yield account, messages


async def converse(service: Service, absent: User, writer: User) -> None:
    """Install the app on both phones, then write in turns. The recipient is always offline."""
    for user in (absent, writer):
        async with user.online() as (account, _):
            answer = await service.register(
                user.name, user.device, partial(register, account, service.jid, user.device)
            )
            await account.ask_own_account(enable_xep0357(answer.service, answer.node, answer.secret))
        log.info("went_offline", user=user.name)
    while True:
        before = await service.last_push(absent.device.token, absent.last_push)
        async with writer.online() as (account, _):
            body = element("body", text=random.choice(LINES))  # noqa: S311 - a line
            account.send(element("message", "", {"type": "chat", "to": absent.jid, "id": new_id()}, body))
            await account.ping()
        log.info("wrote", user=writer.name, to=absent.name)
        if before is not None:
            absent.last_push = before
            await _wait_for_push(service, absent)
        await service.pause()
        async with absent.online() as (account, messages):  # opens the app because of the push
            account.be_available()
            async with asyncio.timeout(AWAY_SECONDS):
                await messages.get()
        log.info("came_back_and_read", user=absent.name)
        absent, writer = writer, absent


async def _wait_for_push(service: Service, user: User) -> None:
    """Log the time when the push reaches the gateway."""
    started = time.monotonic()
    while time.monotonic() - started < PUSH_SECONDS:
        if await service.last_push(user.device.token, user.last_push) != user.last_push:
            log.info("phone_was_pushed", user=user.name, ms=_ms_since(started))
            return
        await asyncio.sleep(POLL_SECONDS)


# A server that pushes to its users ------------------------------------------------------------------------------------


async def serve(service: Service, address: tuple[str, str, str, int]) -> None:
    """Notify the phones of three users, one of which is dead. ``address`` are the arguments of the connection."""
    tokens = os.urandom(32).hex(), os.urandom(32).hex()
    iphone = Device(Platform.APNS, tokens[0], "demo-iphone", APP, "production", tokens[1])
    async with NotifyingServer(*address) as server:
        routes = []
        for user, device, dialect in (
            ("benvolio", iphone, Dialect.MOD_PUSH2),
            ("mercutio", android("demo-android"), Dialect.DRAFT),
            ("rosaline", android("demo-android-dead", "dead-"), Dialect.DRAFT),
        ):
            answer = await service.register(user, device, partial(server.register, user, service.jid, device))
            routes.append(Route(answer.service, dialect, client=answer.client))
            server.core.enable(routes[-1])
        logging = asyncio.create_task(_log_events(server))
        try:
            while not server.component.ended.is_set():
                _notify(server, random.choice(routes))  # noqa: S311 - anybody
                await service.pause()
        finally:
            logging.cancel()
    raise ConnectionFailed("the connection ended")


def _notify(server: NotifyingServer, route: Route) -> None:
    [grade] = random.choices(tuple(GRADES), tuple(GRADES.values()))  # noqa: S311 - anything
    iv = b64encode(os.urandom(IV_BYTES)).decode() if route.dialect is Dialect.DRAFT else ""
    notification = Notification(grade, b64encode(os.urandom(CIPHERTEXT_BYTES)).decode(), iv)
    if server.notify(route, notification):
        log.info("notified", dialect=route.dialect.value, grade=grade.value)


async def _log_events(server: NotifyingServer) -> None:
    while True:
        match await server.next_event(timeout_seconds=None):
            case Disabled(route):
                log.info("route_disabled", dialect=route.dialect.value)
            case Failed(_, refusal):
                log.info("refused", answer=str(refusal))


def android(name: str, fate: str = "") -> Device:
    """Return the device of an Android phone. ``fate`` is the prefix of its token."""
    return Device(Platform.FCM, f"{fate or 'demo'}{uuid.uuid4().hex}", name, APP)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
