"""The component, connected to a server in this process: handshake, answers, errors of the stream, ends.

The tests run on uvloop, as `run_xmpp_bridge` does, because its closed transports behave differently from asyncio's.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest
import uvloop
from django.core.cache import cache

from xmpp_bridge.codec.answers import write_ping
from xmpp_bridge.codec.elements import parse
from xmpp_bridge.codec.limits import MAX_STANZA_BYTES
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.codec.stream import Received
from xmpp_bridge.component import connection, handler, status
from xmpp_bridge.component.backoff import HOPELESS, MAX_SECONDS, Backoff
from xmpp_bridge.component.handler import MAX_OTHERS, Arrived, StanzaHandler
from xmpp_bridge.component.running import Component
from xmpp_bridge.rules.decisions import Domains
from xmpp_bridge.rules.limits import Limits, Rates
from xmpp_bridge.tests.talking import (
    SERVER,
    SERVICE,
    Registered,
    Service,
    arrived,
    command,
    error_of,
    make_app,
    publish,
    push2,
)
from xmpp_bridge.tests.xmpp_server import XmppServer

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

    def find_ended(self) -> list[object]:  # type: ignore[override]
        return []

    def take_queued(self) -> list[bytes]:
        return []

    def close(self) -> None:
        """Nothing to close."""


@asynccontextmanager
async def connected(server: XmppServer, used: StanzaHandler | None = None) -> AsyncIterator[asyncio.Event]:
    """Run a component of the server. Yield the event that stops it."""
    stopped = asyncio.Event()
    async with server.serving() as address:
        component = Component(address, used or IdleHandler())
        work = asyncio.create_task(component.run(stopped))
        try:
            yield stopped
        finally:
            stopped.set()
            async with asyncio.timeout(20):
                await work


def ready(component_state: str = status.CONNECTED) -> bool:
    return status.END.read() == component_state


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - the cache has no events
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _clear() -> None:
    cache.delete(status.END.key())


@on_uvloop
async def test_the_component_proves_the_secret_and_is_saved_as_connected() -> None:
    server = XmppServer()
    async with connected(server):
        await until(ready)
        assert not status.read_fault()
    assert server.ends == ["closed"]


@pytest.mark.requirement("XB1", "X1")
@pytest.mark.parametrize("condition", sorted(HOPELESS))
@on_uvloop
async def test_an_error_that_only_an_operator_can_correct_is_reported_and_seldom_retried(condition: str) -> None:
    server = XmppServer()
    server.refuse = condition
    async with connected(server):
        await until(lambda: ready(condition))
        assert status.read_fault() == status.WORDS[condition]
        assert server.connections == 1


@pytest.mark.requirement("XB2", "X2")
@on_uvloop
async def test_the_component_connects_again_after_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmpp_bridge.component.backoff.FIRST_SECONDS", 0.01)

    server = XmppServer()
    async with connected(server):
        for number in (1, 2, 3):
            await server.until(lambda number=number: server.connections == number)
            await until(ready)
            cache.delete(status.END.key())
            server.drop()


@on_uvloop
async def test_a_server_that_cannot_be_reached_is_reported_as_refused() -> None:
    stopped = asyncio.Event()
    component = Component(connection.Address("127.0.0.1", 1, SERVICE, "x"), IdleHandler())
    work = asyncio.create_task(component.run(stopped))
    await until(lambda: ready("refused"))
    stopped.set()
    await work


@on_uvloop
async def test_a_connection_without_an_answer_to_pings_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(connection, "PING_SECONDS", 0.1)

    server = XmppServer()
    async with connected(server):
        await until(lambda: ready("silent"))
    assert [each.get("type") for each in server.received] == ["get"]
    assert server.received[0].get("to") == SERVICE


@on_uvloop
async def test_a_connection_that_answers_pings_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(connection, "PING_SECONDS", 0.2)

    server = XmppServer()
    async with connected(server):
        for number in range(3):
            await server.until(lambda number=number: len(server.received) > number)
            server.send(write_ping("back", sender=SERVICE, to=SERVICE))
        assert server.connections == 1


@on_uvloop
async def test_a_server_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.05)

    hung_up = asyncio.Event()

    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    silent = await asyncio.start_server(send_nothing, "127.0.0.1", 0)
    address = connection.Address("127.0.0.1", silent.sockets[0].getsockname()[1], SERVICE, "x")
    stopped = asyncio.Event()
    work = asyncio.create_task(Component(address, IdleHandler()).run(stopped))
    await until(lambda: ready("silent"))
    stopped.set()
    await work
    await hung_up.wait()
    silent.close()


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


@on_uvloop
async def test_stanzas_that_arrive_during_a_batch_are_answered_together() -> None:
    server, idle = XmppServer(), IdleHandler(lambda batch: [b"<message/>"] * len(batch))
    async with connected(server, idle):
        await until(ready)
        server.send("<message id='x'/>" * 300)
        await server.until(lambda: len(server.received) == 300)
    assert len(idle.batches) < 100
    assert max(idle.batches) <= connection.MAX_BATCH


ENDS = {
    "closed": b"</stream:stream>",
    "system-shutdown": b"<stream:error><system-shutdown xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error>",
    "broken": b"<!-- -->",
    "lost": b"",
}


@pytest.mark.parametrize(("end", "is_reset"), [*((end, False) for end in ENDS), ("lost", True)])
@on_uvloop
async def test_stanzas_that_were_read_are_stored_before_the_connection_ends(end: str, is_reset: bool) -> None:
    """A message has no acknowledgement, so its sender would not repeat it.

    A server that is killed resets the connection, so that no answer can be sent.
    """
    stored: list[str | None] = []
    is_read = threading.Event()

    def slowly(batch: Sequence[Arrived]) -> list[bytes]:
        is_read.wait(20)
        stored.extend(each.event.stanza.get("id") for each in batch if isinstance(each.event, Received))
        return [b"<message id='answer'/>"] * len(batch)

    server, idle = XmppServer(), IdleHandler(slowly)
    async with connected(server, idle):
        await until(ready)
        server.send("".join(f"<message id='{number}'/>" for number in range(400)))
        server.send(ENDS[end])
        if not is_reset:
            server.hang_up()
        await asyncio.sleep(0.1)  # by then all stanzas have arrived, in any pieces
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
async def test_waiting_stanzas_are_bounded_in_bytes_and_in_number(
    stanza: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database stalls, the server keeps further stanzas, and none is lost."""
    is_back = threading.Event()
    taken: list[int] = []
    monkeypatch.setattr(connection, "Arrived", lambda *of: (taken.append(of[2]), Arrived(*of))[1])

    server = XmppServer()
    async with connected(server, IdleHandler(lambda batch: [b"<message/>"] * len(batch) * is_back.wait(20))):
        await until(ready)
        server.send(stanza * count)
        await asyncio.sleep(0.5)  # no event reports that reading has paused
        in_hand = connection.MAX_BATCH
        assert sum(taken) <= connection.MAX_WAITING_BYTES + connection.READ_BYTES + MAX_STANZA_BYTES
        assert len(taken) <= connection.MAX_WAITING + in_hand + connection.READ_BYTES // len(stanza) + 1
        assert not server.received
        is_back.set()
        await server.until(lambda: len(server.received) == count)


@pytest.mark.django_db
def test_pushes_are_answered_before_commands_that_came_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmpp_bridge.component.handler.OTHERS_SECONDS", 0.0)
    pings = [f"<iq type='get' id='{n}' from='a.test' to='{SERVICE}'><ping xmlns='urn:xmpp:ping'/></iq>" for n in "12"]
    service = Service()
    answers, waiting = service.answer([arrived(stanza) for stanza in (*pings, publish("node", "x", stanza_id="push"))])
    assert ([parse(each).get("id") for each in answers], len(waiting)) == (["push"], 2)


@pytest.mark.django_db
def test_commands_that_come_faster_than_they_are_carried_out_are_answered_with_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of waiting commands is bounded, so that pushes behind them are read. Each stanza is decoded once."""
    monkeypatch.setattr("xmpp_bridge.component.handler.OTHERS_SECONDS", 0.0)
    service, waiting, reported = Service(), [], Counter[str]()
    decoded = []
    monkeypatch.setattr(handler, "decode", lambda stanza: (decoded.append(stanza), decode(stanza))[1])
    for number in range(10):
        commands = [command("nowhere", {}).replace("'c1'", f"'{number}-{each}'") for each in range(199)]
        answers, waiting = service.answer([*waiting, *map(arrived, [*commands, publish("x", "y", stanza_id="push")])])
        reported.update(parse(each).get("id") or "" for each in answers)
        assert (reported["push"], len(waiting)) == (number + 1, min(199 * (number + 1), MAX_OTHERS))
    others = [tree for tree in map(parse, answers) if tree.get("id") != "push"]
    assert {error_of(each) for each in others} == {("wait", "resource-constraint")}
    monkeypatch.setattr("xmpp_bridge.component.handler.OTHERS_SECONDS", 60.0)
    answers, waiting = service.answer(waiting)
    reported.update(parse(each).get("id") or "" for each in answers)
    assert (len(reported), set(reported.values()) - {10}, waiting) == (1 + 1990, {1}, [])
    assert len(decoded) == 10 * 200


@pytest.fixture
def phone() -> Registered:
    make_app()
    return Service().register()


@pytest.mark.requirement("XB3", "X3")
@pytest.mark.django_db(transaction=True)
@on_uvloop
async def test_pushes_are_answered_over_the_wire_and_nothing_breaks_the_stream(phone: Registered) -> None:
    huge = f"<message id='huge' from='{SERVER}' to='{SERVICE}'><body>{'x' * MAX_STANZA_BYTES}</body></message>"
    stanzas = [
        huge,
        publish(phone.node, phone.secret, stanza_id="good"),
        push2("nope", stanza_id="unknown"),
        f"<message type='error' id='error' from='{SERVER}' to='{SERVICE}'><error/></message>",
        f"<presence from='juliet@{SERVER}' to='{SERVICE}'/>",
        f"<iq type='get' id='version' from='{SERVER}' to='{SERVICE}'><query xmlns='jabber:iq:version'/></iq>",
        f"<iq type='get' id='ping' from='{SERVER}' to='{SERVICE}'><ping xmlns='urn:xmpp:ping'/></iq>",
    ]

    server = XmppServer()
    async with connected(server, Service()):
        await until(ready)
        server.send("".join(stanzas))
        await server.until(lambda: len(server.received) == 5)
        reported = {each.get("id"): each for each in server.received}
        assert reported.keys() == {"huge", "good", "unknown", "version", "ping"}
        assert {reported["good"].get("type"), reported["ping"].get("type")} == {"result"}
        assert server.connections == 1


@pytest.mark.requirement("X1")
def test_backoff() -> None:
    backoff = Backoff()
    assert [backoff.pause("lost", jitter=0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff.succeeded()
    assert backoff.pause("lost", jitter=1) == 0.75
    assert all(Backoff().pause(end, jitter=0) == MAX_SECONDS for end in HOPELESS - {"conflict"})


@pytest.mark.requirement("XB1", "X1")
def test_a_conflict_counts_as_hopeless_only_after_a_handover() -> None:
    backoff = Backoff()
    assert [backoff.pause("conflict", jitter=0) for _ in range(6)] == [1, 2, 4, 8, 60, 60]


def test_the_secret_is_in_no_repr() -> None:
    assert "s3cret" not in repr(connection.Address("h", 1, "d", "s3cret"))
