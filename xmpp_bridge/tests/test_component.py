"""The component, connected to a server in this process: handshake, answers, errors of the stream, ends.

The tests run on uvloop, as `run_xmpp_bridge` does, because its closed transports behave differently from asyncio's.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest
import uvloop
from django.core.cache import cache
from django.db.models.functions import Now

from xmpp_bridge import component, connection
from xmpp_bridge.codec.answers import write_ping
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.stream import MAX_STANZA_BYTES
from xmpp_bridge.commands import ACTIONS
from xmpp_bridge.component import HOPELESS, MAX_SECONDS, Backoff, Component
from xmpp_bridge.devices import Ended
from xmpp_bridge.handler import Arrived, StanzaHandler
from xmpp_bridge.limits import Limits, Rates
from xmpp_bridge.messages import Query
from xmpp_bridge.models import CanaryStanza
from xmpp_bridge.rules import Domains
from xmpp_bridge.tests.talking import (
    COMMANDS,
    SERVER,
    SERVICE,
    Registered,
    Service,
    XmppServer,
    arrived,
    command,
    make_app,
    publish,
    push2,
)

DISCO = "http://jabber.org/protocol/disco"
P = ParamSpec("P")


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test run on the event loop of `run_xmpp_bridge`."""

    @wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        uvloop.run(test(*args, **named))

    return run


class IdleHandler(StanzaHandler):
    """A handler that answers with ``reply``, without a database."""

    def __init__(self, reply: Callable[[Sequence[Arrived]], list[bytes]] = lambda _: []) -> None:
        super().__init__(SERVICE, Limits(Rates()), Domains())
        self.reply = reply
        self.batches: list[int] = []

    def answer(self, batch: Sequence[Arrived]) -> tuple[list[bytes], list[Arrived]]:
        self.batches.append(len(batch))
        return self.reply(batch), []

    def take_own(self) -> tuple[list[Ended], list[bytes]]:
        return [], []

    def close(self) -> None:
        """Nothing to close."""


@asynccontextmanager
async def connected(server: XmppServer, used: StanzaHandler | None = None) -> AsyncIterator[asyncio.Event]:
    """Run a component of the server. Yield the event that stops it."""
    stopped = asyncio.Event()
    async with server.serving() as address:
        work = asyncio.create_task(Component(address, used or IdleHandler()).run(stopped))
        try:
            yield stopped
        finally:
            stopped.set()
            async with asyncio.timeout(60):
                await work


def ready(component_state: str = component.CONNECTED) -> bool:
    return component.END.read() == component_state


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - the cache has no events
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _clear() -> None:
    cache.delete(component.END.key())


@pytest.mark.requirement("XB1", "X1")
@pytest.mark.parametrize("condition", sorted(HOPELESS))
@on_uvloop
async def test_an_error_that_only_an_operator_can_correct_is_reported_and_seldom_retried(condition: str) -> None:
    server = XmppServer()
    server.refuse = condition
    async with connected(server):
        await until(lambda: ready(condition))
        assert component.read_fault() == component.WORDS[condition]
        assert server.connections == 1


async def runs_until(address: connection.Address, component_state: str) -> None:
    """Run a component until it has saved this state."""
    stopped = asyncio.Event()
    work = asyncio.create_task(Component(address, IdleHandler()).run(stopped))
    await until(lambda: ready(component_state))
    stopped.set()
    await work


@on_uvloop
async def test_a_server_that_cannot_be_reached_or_sends_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    await runs_until(connection.Address("127.0.0.1", 1, SERVICE, "x"), "refused")
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.05)
    hung_up = asyncio.Event()

    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    silent = await asyncio.start_server(send_nothing, "127.0.0.1", 0)
    await runs_until(connection.Address("127.0.0.1", silent.sockets[0].getsockname()[1], SERVICE, "x"), "silent")
    await hung_up.wait()
    silent.close()


@on_uvloop
async def test_a_connection_is_kept_as_long_as_pings_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(connection, "PING_SECONDS", 1.0)
    server = XmppServer()
    async with connected(server):
        for number in range(3):
            await server.until(lambda number=number: len(server.received) > number)
            assert server.connections == 1
            server.send(write_ping("back", sender=SERVICE, to=SERVICE))
        await until(lambda: ready("silent"))
    shown = {(each.get("type"), each.get("from"), each.get("to"), each[0].tag) for each in server.received}
    assert shown == {("get", SERVICE, SERVICE, "{urn:xmpp:ping}ping")}


@pytest.mark.requirement("XB2", "X2")
@on_uvloop
async def test_stanzas_that_were_read_are_answered_before_the_component_stops() -> None:
    answering = asyncio.Event()
    loop, server = asyncio.get_running_loop(), XmppServer()

    def slowly(batch: Sequence[Arrived]) -> list[bytes]:
        loop.call_soon_threadsafe(answering.set)
        time.sleep(0.2)
        return [b"<message id='answer'/>"] * len(batch)

    async with connected(server, IdleHandler(slowly)) as stopped:
        await until(ready)
        server.send("<message id='question'/>")
        await answering.wait()
        stopped.set()
        await server.until(lambda: server.ends)
    assert [each.get("id") for each in server.received] == ["answer"]
    assert server.ends == ["closed"]


ENDS = {
    "closed": b"</stream:stream>",
    "system-shutdown": b"<stream:error><system-shutdown xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error>",
    "broken": b"<!-- -->",
    "lost": b"",
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the stanzas that a component has read."""
    sizes: list[int] = []
    monkeypatch.setattr(connection, "Arrived", lambda *of: (sizes.append(of[2]), Arrived(*of))[1])
    return sizes


@pytest.mark.requirement("XB2", "X2")
@pytest.mark.parametrize(("end", "is_reset"), [*((end, False) for end in ENDS), ("lost", True)])
@on_uvloop
async def test_stanzas_that_were_read_are_stored_before_a_connection_ends_and_another_is_made(
    end: str, is_reset: bool, taken: list[int]
) -> None:
    """A message has no acknowledgement, so its sender would not repeat it.

    A server that is killed resets the connection, so that no answer can be sent.
    """
    stored: list[str | None] = []
    is_read = threading.Event()

    def slowly(batch: Sequence[Arrived]) -> list[bytes]:
        is_read.wait(20)
        stored.extend(each.event.origin.id for each in batch if isinstance(each.event, Query))
        return [b"<message id='answer'/>"] * len(batch)

    server, idle = XmppServer(), IdleHandler(slowly)
    async with connected(server, idle):
        await until(ready)
        server.send("".join(query(str(number), "<ping xmlns='urn:xmpp:ping'/>") for number in range(400)))
        server.send(ENDS[end])
        if not is_reset:
            server.hang_up()
        await until(lambda: len(taken) == 400)  # in any pieces
        if is_reset:
            server.reset()
            await asyncio.sleep(0.1)
        is_read.set()
        await until(lambda: ready(end))
        await server.until(lambda: server.connections == 2)
    assert stored == [str(number) for number in range(400)]


@pytest.mark.parametrize(
    ("stanza", "count"), [(f"<message><body>{'x' * 60_000}</body></message>", 400), ("<message id='1'/>", 20_000)]
)
@on_uvloop
async def test_waiting_stanzas_are_bounded_in_bytes_and_in_number(stanza: str, count: int, taken: list[int]) -> None:
    """While the database stalls, the server keeps further stanzas, and none is lost."""
    is_back = threading.Event()
    server = XmppServer()
    idle = IdleHandler(lambda batch: [b"<message/>"] * len(batch) * is_back.wait(20))
    async with connected(server, idle):
        await until(ready)
        server.send(stanza * count)
        await asyncio.sleep(0.5)  # no event reports that reading has paused
        in_hand = connection.MAX_BATCH
        assert sum(taken) <= connection.MAX_WAITING_BYTES + connection.READ_BYTES + MAX_STANZA_BYTES
        assert len(taken) <= connection.MAX_WAITING + in_hand + connection.READ_BYTES // len(stanza) + 1
        assert not server.received
        is_back.set()
        await server.until(lambda: len(server.received) == count)
    assert count / connection.MAX_BATCH <= len(idle.batches) < count / 2  # stanzas that wait are answered together
    assert max(idle.batches) <= connection.MAX_BATCH


@pytest.mark.django_db
def test_pushes_are_answered_before_commands_that_came_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmpp_bridge.handler.OTHERS_SECONDS", 0.0)
    commands = [command("nowhere", {}).replace("'c1'", f"'{number}'") for number in range(3)]
    service = Service()
    answers, waiting = service.answer([arrived(each) for each in (*commands, publish("x", "y", stanza_id="push"))])
    assert ([parse(each).get("id") for each in answers], len(waiting)) == (["push"], 3)
    monkeypatch.setattr("xmpp_bridge.handler.OTHERS_SECONDS", 60.0)
    answers, waiting = service.answer(waiting)
    assert ([parse(each).get("id") for each in answers], waiting) == (["0", "1", "2"], [])


@pytest.fixture
def phone() -> Registered:
    """Return a registered device. A stanza of the canary is queued."""
    make_app()
    CanaryStanza.objects.create(pk="queued", text="<message id='queued'/>", queued_at=Now())
    return Service().register()


@pytest.mark.requirement("XB3", "X3")
@pytest.mark.django_db(transaction=True)
@on_uvloop
async def test_requests_are_answered_over_the_wire_and_nothing_breaks_the_stream(phone: Registered) -> None:
    huge = f"<message id='huge' from='{SERVER}' to='{SERVICE}'><body>{'x' * MAX_STANZA_BYTES}</body></message>"
    stanzas = [
        huge,
        publish(phone.node, phone.secret, stanza_id="good"),
        push2("nope", stanza_id="unknown"),
        f"<message type='error' id='error' from='{SERVER}' to='{SERVICE}'><error/></message>",
        f"<presence from='juliet@{SERVER}' to='{SERVICE}'/>",
        query("version", "<query xmlns='jabber:iq:version'/>"),
        query("ping", "<ping xmlns='urn:xmpp:ping'/>"),
        query("info", f"<query xmlns='{DISCO}#info'/>"),
        query("items", f"<query xmlns='{DISCO}#items' node='{COMMANDS}'/>"),
        query("command", f"<query xmlns='{DISCO}#info' node='register-push-fcm'/>"),
        query("nothing", f"<query xmlns='{DISCO}#info' node='nothing'/>"),
    ]
    server = XmppServer()
    async with connected(server, Service()):
        await until(ready)
        server.send("".join(stanzas))
        await server.until(lambda: len(server.received) == 10)
        reported = {each.get("id"): each for each in server.received}
        assert server.connections == 1
    refused = {name: each.find("{*}error/*") for name, each in reported.items() if each.get("type") == "error"}
    assert {name: condition.tag.rpartition("}")[2] for name, condition in refused.items()} == {
        "huge": "bad-request",
        "unknown": "item-not-found",
        "version": "service-unavailable",
        "nothing": "item-not-found",
    }
    assert [len(reported[name]) for name in ("good", "ping", "queued")] == [0] * 3
    kinds = [reported[name].find(".//{*}identity").attrib for name in ("info", "command")]
    assert [(each["category"], each["type"]) for each in kinds] == [("pubsub", "push"), ("automation", "command-node")]
    assert [each.get("var") for each in reported["info"].iter(f"{{{DISCO}#info}}feature")] == [
        *(f"{DISCO}#info", f"{DISCO}#items", COMMANDS, "urn:xmpp:ping", "urn:xmpp:push:0", "urn:xmpp:push2:0"),
    ]
    assert {each.get("node") for each in reported["items"].iter(f"{{{DISCO}#items}}item")} == set(ACTIONS)


def query(name: str, inside: str) -> str:
    return f"<iq type='get' id='{name}' from='{SERVER}' to='{SERVICE}'>{inside}</iq>"


@pytest.mark.requirement("XB1", "X1")
def test_backoff_and_a_conflict_counts_as_hopeless_only_after_a_handover() -> None:
    backoff = Backoff()
    assert [backoff.pause("lost", jitter=0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.failures = 0
    assert backoff.pause("lost", jitter=1) == 0.75
    assert all(Backoff().pause(end, jitter=0) == MAX_SECONDS for end in HOPELESS - {"conflict"})
    handover = Backoff()
    assert [handover.pause("conflict", jitter=0) for _ in range(6)] == [1, 2, 4, 8, 60, 60]
