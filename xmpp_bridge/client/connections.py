"""The network side, over slixmpp: accounts of users (RFC 6120), components (XEP-0114), and a server that notifies.

They send and receive element trees as in `elements`. Nothing reconnects by itself. slixmpp's `fix_error_ns` is not
used, because it changes the namespace of errors for the whole process, accounts included. It is not needed: slixmpp
writes no errors by itself here, and ours are written with the right namespace.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Self
from xml.etree.ElementTree import Element

from slixmpp import ClientXMPP, ComponentXMPP
from slixmpp.xmlstream import tostring

from xmpp_bridge.client import registering
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.registering import Answer, Device
from xmpp_bridge.client.user_server import Event, Route, Step, UserServer

TIMEOUT_SECONDS = 20.0
TICK_SECONDS = 0.1
OnStanza = Callable[[Element], None]
STANZAS = frozenset({"message", "presence", "iq"})


class ConnectionFailed(Exception):  # noqa: N818 - says what is wrong
    """The server refused the login, or could not be reached. The text is the condition of the stream's error."""


def new_id() -> str:
    """Return an id that no other stanza has."""
    return uuid.uuid4().hex


class Connection:
    """One stream. It is open from `connect` to `close`, or inside an `async with`."""

    def __init__(self, stream: Any, host: str, port: int, on_stanza: OnStanza | None) -> None:
        self._stream = stream
        self._address = host, port
        self._on_stanza = on_stanza or (lambda _: None)
        self._is_open = False
        self._waiting: dict[str, asyncio.Future[Element]] = {}
        self.ended = asyncio.Event()
        stream.add_filter("in", self._take)
        stream.add_event_handler("disconnected", lambda _: self.ended.set())

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the stream. Raises ConnectionFailed."""
        opened: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def settle(error: str) -> None:
            if not opened.done():
                self._is_open = not error
                opened.set_result(error)

        self._stream.add_event_handler("session_start", lambda _: settle(""))
        self._stream.add_event_handler("failed_auth", lambda _: settle("not-authorized"))
        self._stream.add_event_handler("stream_error", lambda error: settle(error["condition"]))
        self._stream.add_event_handler("connection_failed", lambda error: settle(str(error)))
        self._stream.add_event_handler("disconnected", lambda _: settle("disconnected"))
        self._stream.connect(*self._address)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                error = await opened
        except TimeoutError:
            error = "timeout"
        if error:
            self.abort()
            raise ConnectionFailed(error)

    def send(self, stanza: Element | str) -> None:
        """Send a stanza, or raw text in place of one, which need not be XML."""
        self._stream.send_raw(stanza if isinstance(stanza, str) else tostring(stanza))

    async def ask(self, request: Element | str, identifier: str = "") -> Element:
        """Send a stanza and return the answer with its id. Raises TimeoutError."""
        identifier = identifier or (request.get("id", "") if isinstance(request, Element) else "")
        answer: asyncio.Future[Element] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = answer
        self.send(request)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await answer
        finally:
            del self._waiting[identifier]

    async def close(self) -> None:
        """Close the stream, and then the connection."""
        if self._is_open and not self.ended.is_set():
            await self._stream.disconnect()
        self.abort()

    def abort(self) -> None:
        """Cut the connection without closing the stream."""
        self._stream.cancel_connection_attempt()
        self._stream.abort()
        self._stream._run_out_filters.cancel()  # noqa: SLF001 - slixmpp leaves its task running otherwise

    def _take(self, stanza: Any) -> Any:
        """Take a stanza before slixmpp's own handlers do, once the session has begun."""
        xml = stanza.xml
        if not self._is_open or xml.tag.rpartition("}")[2] not in STANZAS:
            return stanza
        for part in (xml, *xml):
            part.tag = part.tag.removeprefix(f"{{{self._stream.default_ns}}}")
        waiting = self._waiting.get(xml.get("id", "")) if xml.get("type") in {"result", "error"} else None
        if waiting is not None and not waiting.done():
            waiting.set_result(xml)
        else:
            self._on_stanza(xml)
        return None


class Component(Connection):
    """A component of a server, which receives every stanza to its domain."""

    def __init__(self, domain: str, secret: str, host: str, port: int, on_stanza: OnStanza | None = None) -> None:
        stream = ComponentXMPP(domain, secret, host, port)  # type: ignore[no-untyped-call]
        super().__init__(stream, host, port, on_stanza)


class Account(Connection):
    """A user's client, on a server of this machine that requires no encryption."""

    def __init__(self, jid: str, password: str, host: str, port: int, on_stanza: OnStanza | None = None) -> None:
        stream = ClientXMPP(jid, password)
        stream.enable_starttls = stream.enable_direct_tls = False
        stream.enable_plaintext = True
        stream.plugin["feature_mechanisms"].unencrypted_plain = True
        super().__init__(stream, host, port, on_stanza)


async def register(account: Connection, service: str, device: Device) -> Answer:
    """Register a device, or its new token. Raises TimeoutError."""
    return registering.read_answer(await account.ask(registering.register(service, device, new_id())))


async def unregister(account: Connection, service: str, device: Device) -> Answer:
    """Make the service forget a device. Raises TimeoutError."""
    return registering.read_answer(await account.ask(registering.unregister(service, device, new_id())))


class NotifyingServer:
    """A user's server, connected to the XMPP server of the push service as a component.

    Inside an `async with` it repeats notifications when they are due, and processes the answers.
    """

    def __init__(self, domain: str, secret: str, host: str, port: int) -> None:
        self.core = UserServer(domain, new_id)
        self.component = Component(domain, secret, host, port, self._take)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.component.connect()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self.component.close()

    async def register(self, user: str, service: str, device: Device) -> Answer:
        """Register a device of one of the server's users, as if the user's client sent the command.

        Raises TimeoutError.
        """
        request = registering.register(service, device, new_id())
        request.set("from", f"{user}@{self.core.domain}/app")
        return registering.read_answer(await self.component.ask(request))

    def notify(self, route: Route, notification: Notification) -> Sequence[Element]:
        """Send a notification, and return the stanzas sent: none along a route that is not enabled."""
        step = self.core.notify(route, notification, time.monotonic())
        self._carry_out(step)
        return step.stanzas

    async def next_event(self, *, timeout_seconds: float | None = TIMEOUT_SECONDS) -> Event:
        """Wait for the next event. ``timeout_seconds`` of None waits without a limit. Raises TimeoutError."""
        async with asyncio.timeout(timeout_seconds):
            return await self._events.get()

    def _take(self, stanza: Element) -> None:
        self._carry_out(self.core.receive(stanza, time.monotonic()))

    def _carry_out(self, step: Step) -> None:
        for stanza in step.stanzas:
            self.component.send(stanza)
        for event in step.events:
            self._events.put_nowait(event)

    async def _tick(self) -> None:
        while not self.component.ended.is_set():
            self._carry_out(self.core.tick(time.monotonic()))
            await asyncio.sleep(TICK_SECONDS)
