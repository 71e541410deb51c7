"""One connection of the component to the XMPP server, from its opening to its end."""

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
from xmpp_bridge.codec.elements import BrokenStream
from xmpp_bridge.codec.stanzas import decode
from xmpp_bridge.codec.stream import CLOSING, Closed, Event, Opened, Ready, Received, Stream, handshake, opening
from xmpp_bridge.devices import write_ends
from xmpp_bridge.handler import Arrived, StanzaHandler
from xmpp_bridge.messages import Ignored, StanzaEvent

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 10.0
# From the connection to the accepted handshake.
HANDSHAKE_SECONDS = 15.0
# A half-open connection is detected only when the answer to a stanza of ours is missing.
PING_EVERY_SECONDS = 60.0
PING_SECONDS = 15.0
OWN_EVERY_SECONDS = 1.0
# At a stop: seconds for the stanzas that were read, and then for those that arrive until the server closes the stream.
IN_HAND_SECONDS = 1.0
FINISH_SECONDS = 5.0
READ_BYTES = 64 * 1024
# Limits of the stanzas that wait for the handler. Beyond either, nothing is read, and the server keeps further stanzas.
MAX_WAITING = 500
MAX_WAITING_BYTES = 4 * 1024 * 1024
MAX_BATCH = 200


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the XMPP server, our domain on it, and the secret of the component."""

    host: str
    port: int
    domain: str
    secret: str = field(repr=False)


class ConnectionEnded(Exception):  # noqa: N818 - says what happened
    """The connection is over, by the condition of the server's stream error, or by one of this module's words."""


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
        self._received_at = monotonic()
        self._writer: asyncio.StreamWriter | None = None
        self._is_closed = False  # our side of the stream
        self._is_paused = False  # nothing is read, because too many stanzas wait

    async def run(self, stopped: asyncio.Event) -> str:
        """Connect, and serve until the connection ends or ``stopped`` is set.

        Return how it ended: the condition of the server's stream error, or `refused`, `lost`, `silent`, `closed`,
        `broken` or `stopped`.
        """
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, self._writer = await asyncio.open_connection(address.host, address.port)
        except (OSError, TimeoutError):
            return "refused"
        self._handler.connect()
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
        working = [answering, *map(asyncio.create_task, (self._keep_alive(), self._send_own()))]
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
        """Answer the stanzas that were read, close the stream, and store those that arrive until the server closes it.

        A message has no acknowledgement, so its sender would not repeat it. From then on the XMPP server itself answers
        pushes with `wait`.
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
        """Store the stanzas that were read before the connection ended, and answer them while the server still reads.

        If the answering task itself failed, nothing more is stored.
        """
        storing = asyncio.create_task(self._waiting.join())
        over: list[asyncio.Future[Any]] = [storing, answering]
        await asyncio.wait(over, timeout=FINISH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._is_closed = True
        if self._writer:
            self._writer.transport.abort()  # so that no write waits for a server that does not read
        await asyncio.wait([*over, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(over, timeout=FINISH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        storing.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                data = await reader.read(READ_BYTES)
                self._received_at = monotonic()
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
        """Return whether reading pauses, because too many stanzas or bytes wait."""
        return self._waiting.qsize() > MAX_WAITING or self._unanswered_bytes > MAX_WAITING_BYTES

    async def _take(self, event: Event) -> None:
        match event:
            case Opened(stream_id):
                if stream_id:  # without one, the server's next answer is the error `host-unknown`
                    await self._send(handshake(stream_id, self._address.secret))
            case Ready():
                self._ready.set()
                self._announce_ready()
            case Received(size=size):
                self._waiting.put_nowait(Arrived(_decode(event), monotonic(), size))
                self._unanswered_bytes += size
            case Closed(condition):
                raise ConnectionEnded(condition)

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
        """Ping ourselves through the server once a minute. A ping that comes back proves both directions."""
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
                # Earlier stanzas may have filled the buffers of a dead connection, so sending may block. While reading
                # is paused, a completed send is the only sign of life.
                is_alive = self._received_at >= asked_at or (self._is_paused and sending.done())
            finally:
                sending.cancel()
            if not is_alive:
                raise ConnectionEnded("silent")

    async def _send_own(self) -> None:
        """Once a second announce a batch of ends to users' servers, and send the canary's stanzas to ourselves."""
        loop = asyncio.get_running_loop()
        await self._ready.wait()
        while True:
            ended, queued = await loop.run_in_executor(self._thread, self._handler.take_own)
            for stanza in (*queued, *write_ends(ended, domain=self._address.domain)):
                await self._send(stanza)
            if ended:
                await loop.run_in_executor(self._thread, self._handler.note_announced, ended)
            await asyncio.sleep(OWN_EVERY_SECONDS)

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
        except OSError:  # the reading task ends with the same error, and reports it
            self._is_closed = True


def _decode(received: Received) -> StanzaEvent:
    try:
        return decode(received.stanza, is_too_large=received.is_too_large)
    except Exception as error:  # noqa: BLE001 - a fault of the codec concerns this stanza alone
        log.error("stanza_failed", error=type(error).__name__)  # noqa: TRY400 - it may quote the stanza
        return Ignored("failed")


def _end_of(tasks: "list[asyncio.Task[None]]") -> str:
    """Return how the connection ended, from the errors of its tasks.

    Raises the error of a task that is a fault of ours, and so ends the process.
    """
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    for error in errors:
        if not isinstance(error, ConnectionEnded):
            raise error
    # An error that the server sent says more than the closed connection that follows it.
    ends = [str(error) for error in errors]
    return next((end for end in ends if end != "lost"), "lost")
