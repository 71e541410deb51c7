"""One connection to the XMPP server, from the opening to the end."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

import structlog

from xmpp_bridge.codec.answers import write_ping
from xmpp_bridge.codec.errors import BrokenStream
from xmpp_bridge.codec.stream import (
    CLOSING,
    Closed,
    Failed,
    Opened,
    Ready,
    Received,
    Stream,
    TooLarge,
    Unreadable,
    handshake,
    opening,
)
from xmpp_bridge.component.handler import Arrived, StanzaHandler

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 10.0
# From the connection to the accepted handshake.
HANDSHAKE_SECONDS = 15.0
# A link that is half open looks fine until something is sent on it, and an answer is missing.
PING_EVERY_SECONDS = 60.0
PING_SECONDS = 15.0
ANNOUNCE_EVERY_SECONDS = 1.0
QUEUED_EVERY_SECONDS = 0.5
# How long what is in hand may take at the end, and then what the server sent before it closed the stream, too.
IN_HAND_SECONDS = 1.0
FINISH_SECONDS = 5.0
READ_BYTES = 64 * 1024
# Stanzas that wait for the handler, and their bytes. When there are more, nothing is read, and the server keeps them.
MAX_WAITING = 500
MAX_WAITING_BYTES = 4 * 1024 * 1024
MAX_BATCH = 200


@dataclass(frozen=True, slots=True)
class Address:
    """Where the XMPP server is, who we are there, and the secret that proves it."""

    host: str
    port: int
    domain: str
    secret: str = field(repr=False)


class ConnectionEnded(Exception):  # noqa: N818 - says what happened
    """The connection is over. ``end`` says how: a condition of the server's stream error, or a word of ours."""

    def __init__(self, end: str) -> None:
        super().__init__(end)
        self.end = end


class Connection:
    """One connection. ``ready`` is called once stanzas flow."""

    def __init__(
        self, address: Address, stanza_handler: StanzaHandler, thread: Executor, ready: Callable[[], None]
    ) -> None:
        self._address = address
        self._handler = stanza_handler
        self._thread = thread
        self._announce_ready = ready
        self._ready = asyncio.Event()
        self._stream = Stream()
        self._waiting: asyncio.Queue[Arrived] = asyncio.Queue()
        self._unanswered_bytes = 0
        self._answered = asyncio.Event()
        self._heard_at = monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._is_closed = False  # our side of the stream
        self._is_paused = False  # nothing is read, because too much waits

    async def run(self, stopped: asyncio.Event) -> str:
        """Connect, and serve until the connection ends or we are stopped. Return how it ended."""
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_connection(address.host, address.port)
        except (OSError, TimeoutError):
            return "refused"
        try:
            return await self._serve(reader, stopped)
        finally:
            self._writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, stopped: asyncio.Event) -> str:
        await self._send(opening(self._address.domain))
        reading, answering = asyncio.create_task(self._read(reader)), asyncio.create_task(self._answer())
        others = [asyncio.create_task(each) for each in (self._keep_alive(), self._announce(), self._send_queued())]
        working = [answering, *others]
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait([reading, stopping, *working], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self._finish(reading)
                return "stopped"
            await self._store_rest(answering, stopping)
            return _end_of([reading, *working])
        finally:
            for task in (reading, stopping, *working):
                task.cancel()
            await asyncio.gather(reading, stopping, *working, return_exceptions=True)

    async def _finish(self, reading: "asyncio.Task[None]") -> None:
        """Answer what is in hand, close the stream, and store what the server sent until it closed it, too: messages
        have no acknowledgement, so nobody would send them again. From then on the server tells who pushes to wait.
        """
        if not self._ready.is_set():
            reading.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(IN_HAND_SECONDS):
                await self._waiting.join()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._send(CLOSING)
                self._is_closed = True
                await asyncio.wait([reading])
                await self._waiting.join()

    async def _store_rest(self, answering: "asyncio.Task[None]", stopping: "asyncio.Task[bool]") -> None:
        """Store what was read before the connection ended, and answer it while the server still listens. Where what
        answers has ended by a fault, nothing is stored any more.
        """
        storing = asyncio.create_task(self._waiting.join())
        over: list[asyncio.Future[Any]] = [storing, answering]
        await asyncio.wait(over, timeout=FINISH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._is_closed = True
        if self._writer:
            self._writer.transport.abort()  # nothing waits any more for a server that does not read
        await asyncio.wait([*over, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(over, timeout=FINISH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        storing.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                data = await reader.read(READ_BYTES)
                self._heard_at = monotonic()
                for event in self._stream.feed(data):
                    await self._take(event)
            except OSError:
                raise ConnectionEnded("lost") from None
            except BrokenStream:
                raise ConnectionEnded("broken") from None
            if not data:
                raise ConnectionEnded("lost")
            self._is_paused = self._is_full()
            while self._is_full():
                self._answered.clear()
                await self._answered.wait()
            self._is_paused = False

    def _is_full(self) -> bool:
        """Return whether nothing more is to be read, because too much waits."""
        return self._waiting.qsize() > MAX_WAITING or self._unanswered_bytes > MAX_WAITING_BYTES

    async def _take(self, event: object) -> None:
        match event:
            case Opened(stream_id):
                if stream_id:  # without one the server is about to say that it knows no such component
                    await self._send(handshake(stream_id, self._address.secret))
            case Ready():
                self._ready.set()
                self._announce_ready()
            case Received() | TooLarge() | Unreadable():
                size = 0 if isinstance(event, Unreadable) else event.size
                self._waiting.put_nowait(Arrived(event, monotonic(), size))
                self._unanswered_bytes += size
            case Failed(condition):
                raise ConnectionEnded(condition)
            case Closed():
                raise ConnectionEnded("closed")

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        batch: list[Arrived] = []
        while True:
            batch += await self._next_batch(can_wait=not batch)
            answers, later = await loop.run_in_executor(self._thread, self._handler.answer, batch)
            for answer in answers:
                await self._send(answer)
            self._unanswered_bytes += sum(arrived.size for arrived in later) - sum(arrived.size for arrived in batch)
            for _ in range(len(batch) - len(later)):
                self._waiting.task_done()
            self._answered.set()
            batch = later

    async def _next_batch(self, *, can_wait: bool) -> list[Arrived]:
        batch = [await self._waiting.get()] if can_wait else []
        while len(batch) < MAX_BATCH and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch

    async def _keep_alive(self) -> None:
        """Ping ourselves through the server now and then: what comes back has gone both ways."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise ConnectionEnded("silent") from None
        domain = self._address.domain
        while True:
            await asyncio.sleep(PING_EVERY_SECONDS)
            asked_at = monotonic()
            sending = asyncio.create_task(self._send(b" " + write_ping(uuid4().hex, sender=domain, to=domain)))
            try:
                await asyncio.sleep(PING_SECONDS)
                # What was sent before may have filled the buffers of a link that is dead. While nothing is read, it is
                # known only that the server takes what is sent.
                is_heard = self._heard_at >= asked_at or (self._is_paused and sending.done())
            finally:
                sending.cancel()
            if not is_heard:
                raise ConnectionEnded("silent")

    async def _announce(self) -> None:
        """Tell users' servers of routes that were disabled, a few of them each second."""
        loop = asyncio.get_running_loop()
        await self._ready.wait()
        while True:
            ended = await loop.run_in_executor(self._thread, self._handler.find_ended)
            for announcement in self._handler.write_ends(ended):
                await self._send(announcement)
            if ended:
                await loop.run_in_executor(self._thread, self._handler.note_announced, ended)
            await asyncio.sleep(ANNOUNCE_EVERY_SECONDS)

    async def _send_queued(self) -> None:
        """Say to ourselves, through the server, what the canary wants said."""
        loop = asyncio.get_running_loop()
        await self._ready.wait()
        while True:
            for stanza in await loop.run_in_executor(self._thread, self._handler.take_queued):
                await self._send(stanza)
            await asyncio.sleep(QUEUED_EVERY_SECONDS)

    async def _send(self, data: bytes) -> None:
        writer = self._writer
        assert writer is not None  # noqa: S101 - nothing is sent before there is a connection
        # A transport of uvloop that was reset raises RuntimeError where asyncio's takes what is written.
        self._is_closed |= writer.transport.is_closing()
        if self._is_closed:
            return
        try:
            writer.write(data)
            await writer.drain()
        except OSError:  # reading ends by it, too
            self._is_closed = True


def _end_of(tasks: "list[asyncio.Task[None]]") -> str:
    """Return how the connection ended, by the task that ended first. A fault of ours ends the process."""
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    for error in errors:
        if not isinstance(error, ConnectionEnded):
            raise error
    # What the server said is worth more than that it closed the connection afterwards.
    ends = [error.end for error in errors if isinstance(error, ConnectionEnded)]
    return next((end for end in ends if end != "lost"), "lost")
