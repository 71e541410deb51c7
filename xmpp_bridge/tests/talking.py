"""Helpers of this bridge's tests: an app, a registered device, stanzas as users' servers send them, and a server."""

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any
from xml.etree.ElementTree import Element, tostring

from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.stanzas import decode, read_forms
from xmpp_bridge.codec.stream import Closed, Event, Opened, Received, Stream
from xmpp_bridge.connection import Address
from xmpp_bridge.devices import Ended, write_ends
from xmpp_bridge.handler import Arrived, StanzaHandler
from xmpp_bridge.limits import Limits, Rates
from xmpp_bridge.models import App
from xmpp_bridge.rules import Domains

SERVICE = "push.montague.test"
SERVER = "capulet.test"
JULIET = "juliet@capulet.test/balcony"
APN_TOKEN, CALL_TOKEN = "ab" * 32, "cd" * 32
FCM_TOKEN = "fcm-token_of:juliet" * 3
COMMANDS = "http://jabber.org/protocol/commands"
STANZA_ERRORS = "{urn:ietf:params:xml:ns:xmpp-stanzas}"
PUSH2 = "{urn:xmpp:push2:0}"
IV = "ZGVmZ2hpamtsbW5v"
FORWARDED = (
    "<forwarded xmlns='urn:xmpp:forward:0'><message xmlns='jabber:client' from='romeo@capulet.test/desk' "
    "to='juliet@capulet.test'><body>Wherefore art thou?</body></message></forwarded>"
)
T0 = datetime(2026, 3, 1, tzinfo=UTC)


def make_app(slug: str = "chat", **fields: Any) -> App:
    return App.objects.create(**{"slug": slug, "app_topic": f"org.example.{slug}", "created_at": T0} | fields)


class Service(StanzaHandler):
    """The handler of a component, with stanzas as text and answers as trees."""

    def __init__(self, rates: Rates | None = None, domains: Domains | None = None) -> None:
        self.limits = Limits(rates or Rates())
        super().__init__(SERVICE, self.limits, domains or Domains())

    def receive_all(self, *stanzas: str) -> list[Element]:
        """Return the answers to these stanzas, which arrive in one batch."""
        answers, waiting = self.answer([arrived(stanza) for stanza in stanzas])
        while waiting:
            more, waiting = self.answer(waiting)
            answers += more
        return [parse(answer) for answer in answers]

    def receive(self, stanza: str) -> Element | None:
        """Return the answer to one stanza, or None if it has none."""
        answers = self.receive_all(stanza)
        assert len(answers) <= 1
        return answers[0] if answers else None

    def ask(self, stanza: str) -> Element:
        """Return the answer to one stanza that has one."""
        [answer] = self.receive_all(stanza)
        return answer

    def command(self, node: str, fields: dict[str, str] | None, **attributes: str) -> Element:
        return self.ask(command(node, fields, **attributes))

    def find_ended(self) -> list[Ended]:
        return self.take_own()[0]

    def write_ends(self, ended: list[Ended]) -> list[bytes]:
        return write_ends(ended, domain=SERVICE)

    def register(self, *, platform: str = "apns", sender: str = JULIET, **fields: str) -> "Registered":
        """Register a device, as its app does."""
        token = APN_TOKEN if platform == "apns" else FCM_TOKEN
        fields = {"token": token, "device-id": "phone"} | {k.replace("_", "-"): v for k, v in fields.items()}
        values = result_of(self.command(f"register-push-{platform}", fields, sender=sender))
        return Registered(values["jid"], values["client"], values["node"], values["secret"])


@dataclass(frozen=True, slots=True)
class Registered:
    """The credentials that the app of a device received."""

    jid: str
    client: str
    node: str
    secret: str


def arrived(stanza: str) -> Arrived:
    return Arrived(decode(parse(stanza.encode())), monotonic(), len(stanza))


def command(node: str, fields: dict[str, str] | None, *, sender: str = JULIET, to: str = SERVICE, **own: str) -> str:
    shown = "".join(f" {name}='{value}'" for name, value in own.items())
    form = ""
    if fields is not None:
        inside = "".join(f"<field var='{name}'><value>{value}</value></field>" for name, value in fields.items())
        form = f"<x xmlns='jabber:x:data' type='submit'>{inside}</x>"
    return (
        f"<iq type='set' id='c1' from='{sender}' to='{to}'>"
        f"<command xmlns='{COMMANDS}' node='{node}'{shown}>{form}</command></iq>"
    )


def push2(
    client: str,
    inside: str = "",
    *,
    sender: str = SERVER,
    to: str = SERVICE,
    stanza_id: str = "",
    attributes: str = "",
) -> str:
    stanza_id = stanza_id or f"m{next(_NUMBERS)}"
    return (
        f"<message id='{stanza_id}' from='{sender}' to='{to}'><notification xmlns='urn:xmpp:push2:0' {attributes}>"
        f"<client>{client}</client>{inside}</notification></message>"
    )


def encrypted(text: str = "AAAA", *, voip: bool = False) -> str:
    kind = " type='voip'" if voip else ""
    return f"<encrypted iv='{IV}'{kind}>{text}</encrypted>"


def tigase(text: str = "AAAA", *, voip: bool = False) -> str:
    """Return a ciphertext as servers publish it by XEP-0357."""
    return encrypted(text, voip=voip).replace("<encrypted", "<encrypted xmlns='tigase:push:encrypt:0'")


def rfc8291(text: str = "AAAA") -> str:
    return f"<encrypted xmlns='urn:xmpp:sce:rfc8291:0'><payload>{text}</payload></encrypted>"


def publish(node: str, secret: str, inside: str = "", *, sender: str = SERVER, stanza_id: str = "") -> str:
    stanza_id = stanza_id or f"i{next(_NUMBERS)}"
    form = "<field var='FORM_TYPE'><value>http://jabber.org/protocol/pubsub#publish-options</value></field>"
    options = f"<x xmlns='jabber:x:data' type='submit'>{form}<field var='secret'><value>{secret}</value></field></x>"
    return (
        f"<iq type='set' id='{stanza_id}' from='{sender}' to='{SERVICE}'><pubsub xmlns='http://jabber.org/protocol/pubsub'>"
        f"<publish node='{node}'><item><notification xmlns='urn:xmpp:push:0'>{inside}</notification></item></publish>"
        f"<publish-options>{options}</publish-options></pubsub></iq>"
    )


def summary(**values: str) -> str:
    fields = {"FORM_TYPE": "urn:xmpp:push:summary", "message-count": "1"}
    fields |= {name.replace("_", "-"): value for name, value in values.items()}
    inside = "".join(f"<field var='{name}'><value>{value}</value></field>" for name, value in fields.items())
    return f"<x xmlns='jabber:x:data' type='form'>{inside}</x>"


def result_of(answer: Element) -> dict[str, str]:
    """Return the values of a completed command."""
    assert answer.get("type") == "result", error_of(answer)
    [shown] = answer
    assert shown.get("status") == "completed"
    forms = read_forms(shown)
    return forms[0][1] if forms else {}


def error_of(answer: Element | None) -> tuple[str, str]:
    """Return the type and the condition of an error."""
    assert answer is not None
    assert answer.get("type") == "error"
    error = answer.find("error")
    assert error is not None
    assert error.get("by") == SERVICE
    conditions = [each.tag.removeprefix(STANZA_ERRORS) for each in error if each.tag.startswith(STANZA_ERRORS)]
    return error.get("type", ""), next(each for each in conditions if each != "text")


def disabled_client(answer: Element) -> str | None:
    found = answer.find(f"error/{PUSH2}disabled/{PUSH2}client")
    return None if found is None else found.text


_NUMBERS = itertools.count()


# Double of an XMPP server, in the process of the test -----------------------------------------------------------------

SECRET = "s3cret"
TIMEOUT_SECONDS = 60


class XmppServer:
    """The other side of a component's connection (XEP-0114), which accepts one connection after the other. It sends the
    data that a test passes to `send`, and keeps the stanzas that it receives.

    ``refuse`` is the condition of the error that answers handshakes. With ``does_route``, the server routes back the
    stanzas that the component sends to itself, as real servers do.
    """

    def __init__(self) -> None:
        self.refuse = ""
        self.does_route = False
        self.connections = 0
        self.received: list[Element] = []
        self.ends: list[str] = []
        self.changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._handlers: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", self._server.sockets[0].getsockname()[1], SERVICE, SECRET)
        finally:
            self._server.close()
            if self._writer is not None:
                self._writer.transport.abort()
            await asyncio.gather(*self._handlers)

    def send(self, data: str | bytes) -> None:
        assert self._writer is not None
        self._writer.write(data.encode() if isinstance(data, str) else data)

    def hang_up(self) -> None:
        """Close the connection once all data are sent."""
        assert self._writer is not None
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection, as the kernel does for a process that is killed with unread data."""
        assert self._writer is not None
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until the condition holds. It is checked after each event of the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handlers.append(asyncio.current_task())  # type: ignore[arg-type]
        self._writer, stream, self.connections = writer, Stream(), self.connections + 1
        is_closed = False
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                for event in stream.feed(data):
                    self._receive(event, writer)
                    is_closed |= isinstance(event, Closed)
                self.changed.set()
        self.ends.append("closed" if is_closed else "cut")
        self.changed.set()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _receive(self, event: Event, writer: asyncio.StreamWriter) -> None:
        match event:
            case Opened():
                shown = "" if self.refuse == "host-unknown" else f"stream-{self.connections}"
                writer.write(
                    f"<?xml version='1.0'?><stream:stream xmlns='jabber:component:accept' id='{shown}' "
                    f"from='{SERVICE}' xmlns:stream='http://etherx.jabber.org/streams'>".encode()
                )
                if self.refuse == "host-unknown":
                    self._refuse(writer)
            case Received(stanza):
                self.received.append(stanza)
                if self.does_route and stanza.get("to", "").partition("/")[0].endswith(SERVICE):
                    writer.write(tostring(stanza))
            case Closed():  # real servers close their side at once
                writer.write(b"</stream:stream>")
                writer.close()
            case _:  # Ready: the handshake of a component looks like the server's
                self._refuse(writer) if self.refuse else writer.write(b"<handshake/>")

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        condition = f"<{self.refuse} xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>"
        writer.write(f"<stream:error>{condition}</stream:error></stream:stream>".encode())
        writer.close()
