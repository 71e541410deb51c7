"""Two users of a real server. One writes while the other is offline, so that the phone gets a push."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import structlog

from xmpp_bridge.client import registering
from xmpp_bridge.client.connections import Account, ConnectionFailed, OnStanza, new_id, register
from xmpp_bridge.client.elements import element, text_at
from xmpp_bridge.client.registering import Device, Registered

LINES = (
    "Wherefore art thou, Romeo?",
    "Parting is such sweet sorrow.",
    "My bounty is as boundless as the sea.",
    "Thus with a kiss I die.",
)
AWAY_SECONDS = 2.0
# Longer than wake-ups of one device are delayed.
PUSH_SECONDS = 10.0
POLL_SECONDS = 0.02

CountPushes = Callable[[str], Awaitable[int | None]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class User:
    """A user with a phone. ``connect`` opens a connection of it, which passes stanzas to a function."""

    name: str
    jid: str
    device: Device
    connect: Callable[[OnStanza], Account]


class Conversation:
    """Two people who write to each other. ``pause_seconds`` is the average time between two messages.

    ``count_pushes`` returns the number of pushes that a device has got so far, or None when no record is kept.
    """

    def __init__(
        self, first: User, second: User, service: str, *, pause_seconds: float, count_pushes: CountPushes
    ) -> None:
        self._users = first, second
        self._count_pushes = count_pushes
        self._service = service
        self._pause_seconds = pause_seconds

    async def live(self) -> None:
        """Play until cancelled. While the XMPP server is unreachable, try again."""
        while True:
            try:
                await self._play()
            except (ConnectionFailed, TimeoutError) as error:
                log.warning("xmpp_server_away", error=str(error) or "timeout")
                await asyncio.sleep(AWAY_SECONDS)

    async def _play(self) -> None:
        """Install the app on both phones, then write in turns. The recipient is always offline."""
        for user in self._users:
            await self._install(user)
        absent, writer = self._users
        while True:
            before = await self._count_pushes(absent.device.token)
            await self._write(writer, absent)
            await self._wait_for_push(absent, before)
            await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - a pause
            await self._come_back(absent)
            absent, writer = writer, absent

    async def _install(self, user: User) -> None:
        """Register the phone, have the user's server push to it, and go offline."""
        async with user.connect(lambda _: None) as account:
            started = time.monotonic()
            while not isinstance(answer := await register(account, self._service, user.device), Registered):
                log.warning("registration_refused", user=user.name, answer=str(answer))
                await asyncio.sleep(AWAY_SECONDS)
            log.info("registered", user=user.name, device=user.device.platform.value, ms=_ms_since(started))
            await account.ask_own_account(registering.enable_xep0357(answer.service, answer.node, answer.secret))
        log.info("went_offline", user=user.name)

    async def _write(self, writer: User, absent: User) -> None:
        async with user_online(writer) as (account, _):
            body = element("body", text=random.choice(LINES))  # noqa: S311 - a line
            account.send(element("message", "", {"type": "chat", "to": absent.jid, "id": new_id()}, body))
            await account.ping()
            log.info("wrote", user=writer.name, to=absent.name)

    async def _wait_for_push(self, user: User, before: int | None) -> None:
        """Log the time when the push reaches the gateway."""
        started = time.monotonic()
        while before is not None and time.monotonic() - started < PUSH_SECONDS:
            if (await self._count_pushes(user.device.token) or 0) > before:
                log.info("phone_was_pushed", user=user.name, ms=_ms_since(started))
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _come_back(self, user: User) -> None:
        """Open the app because of the push, and read the waiting messages."""
        async with user_online(user) as (account, messages):
            account.be_available()
            async with asyncio.timeout(AWAY_SECONDS):
                await messages.get()
        log.info("came_back_and_read", user=user.name)


@asynccontextmanager
async def user_online(user: User) -> AsyncIterator[tuple[Account, "asyncio.Queue[Element]"]]:
    """Connect, and yield the connection with the messages that have a body."""
    messages: asyncio.Queue[Element] = asyncio.Queue()

    def take(stanza: Element) -> None:
        if stanza.tag == "message" and text_at(stanza, "body"):
            messages.put_nowait(stanza)

    async with user.connect(take) as account:
        yield account, messages


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
