"""The network side of the client cores, which publishes what they say and gives them what they are told, over one Waku
node.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from waku_bridge.client.core import Core
from waku_bridge.client.events import Destination, Event, Notified, Step
from waku_bridge.client.notification.asking import Content
from waku_bridge.client.notification.sending import SendingClient
from waku_bridge.client.reading import CLOCK_SKEW_NS, StoreReader
from waku_bridge.client.registration.registering import RegisteringClient
from waku_bridge.client.registration.schedules import SECOND_NS
from waku_bridge.client.state import ServerState, Standing
from waku_bridge.messages import RegistrationError, WakuMessage
from waku_bridge.node import NodeError, WakuNode

DEFAULT_PUBSUB_TOPIC = "/waku/2/rs/16/32"
POLL_SECONDS = 0.2
# Stores refuse what is dated 20 s ago. What a node did not take by then is left to the core, which says it again.
UNSENT_NS = 15 * SECOND_NS


class SessionError(Exception):
    """A question did not lead to what was asked for.

    SessionError
    ├── NoAnswer                nobody answered in time
    └── RegistrationRefused     the server answered, and said no
    """


class NoAnswer(SessionError):  # noqa: N818 - says what is wrong
    """No server answered in time."""


class RegistrationRefused(SessionError):  # noqa: N818 - says what is wrong
    """A server refused the registration.

    ``error`` is the wire's ErrorType, and an unknown number stays a number. ``server`` has 33 bytes.
    """

    def __init__(self, error: int, server: bytes) -> None:
        known = error in {known.value for known in RegistrationError}
        super().__init__(RegistrationError(error).name if known else f"error {error}")
        self.error = error
        self.server = server


class Session:
    """One node and one shard, for any number of clients at the same time.

    A client lives only while something here drives it: a call of `register`, `look_up` or `notify`, or `events`, which
    never ends and is what a phone does. ``on_event`` is called with everything that happens to any client, and with the
    client. Every method raises NodeError when the node does not take what is to be said. While it waits for an answer,
    it asks a node that cannot be reached again until the time is up.
    """

    def __init__(
        self,
        node: WakuNode,
        *,
        pubsub_topic: str = DEFAULT_PUBSUB_TOPIC,
        poll_seconds: float = POLL_SECONDS,
        clock_ns: Callable[[], int] = time.time_ns,
        on_event: Callable[[Core, Event], None] | None = None,
    ) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._poll_seconds = poll_seconds
        self._clock_ns = clock_ns
        self._on_event = on_event
        self._lines: WeakKeyDictionary[Core, _Line] = WeakKeyDictionary()

    async def register(self, client: RegisteringClient, *, timeout_seconds: float = 10.0) -> None:
        """Tell the client's servers its current version until all have accepted it, and publish its contact code.

        After NoAnswer, calling it again repeats the same to the servers that have not answered. Raises NoAnswer, or
        RegistrationRefused as soon as one server refuses.
        """
        if any(slot.standing is not Standing.ACCEPTED and slot.attempts for slot in client.state.servers):
            client.retry()
        await self.drive(client, lambda: _is_answered(client), timeout_seconds=timeout_seconds)
        for slot in client.state.servers:
            if slot.error:
                raise RegistrationRefused(slot.error, slot.server)
        if not all(map(_is_accepted, client.state.servers)):
            raise NoAnswer("the server did not answer the registration")

    async def look_up(
        self, sender: SendingClient, client: bytes, *, timeout_seconds: float = 10.0
    ) -> tuple[Destination, ...]:
        """Ask where a client (33 bytes) can be notified, and return all that is believed about it then.

        The result is empty when there were answers but none for this sender, for instance because it is no contact.
        Raises NoAnswer when nothing is known and no server answered; the sender's Patience says when that is clear.
        """
        sender.look_up(client)
        await self.drive(sender, lambda: not sender.is_looking_up(client), timeout_seconds=timeout_seconds)
        found = sender.destinations(client)
        if not found and not sender.answer_count(client):
            raise NoAnswer("no server answered the query")
        return found

    async def notify(
        self,
        sender: SendingClient,
        client: bytes,
        content: Content,
        message_id: bytes,
        *,
        installation_ids: Sequence[str] | None = None,
        timeout_seconds: float = 30.0,
    ) -> Notified:
        """Have a client (33 bytes) notified about the Status message of that id, with as many requests as needed.

        Raises NoAnswer when it is not settled in time. Calling it again continues to wait, and asks no server twice.
        """
        sender.notify(client, content, message_id, installation_ids)
        await self.drive(sender, lambda: sender.result(client, message_id) is not None, timeout_seconds=timeout_seconds)
        result = sender.result(client, message_id)
        if result is None:
            raise NoAnswer("the notification is not settled")
        return result

    async def events(self, core: Core) -> AsyncIterator[Event]:
        """Drive a client without end, with retries, periodic contact codes and late answers, and yield what happens.

        A node that is away is asked again and again, without an exception.
        """
        while True:
            happened: list[Event] = []
            with suppress(NodeError):
                await self._speak(core, happened)
                await self._listen(core, happened)
            for event in happened:
                yield event
            await asyncio.sleep(self._poll_seconds)

    async def drive(self, core: Core, is_done: Callable[[], bool], *, timeout_seconds: float) -> bool:
        """Drive a client until ``is_done`` or until the time is up, and return whether it is done."""
        deadline = time.monotonic() + timeout_seconds
        await self._speak(core, [])
        while not is_done():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(self._poll_seconds)
            with suppress(NodeError):
                await self._listen(core, [])
            await self._speak(core, [])
        return True

    async def publish(self, message: WakuMessage) -> None:
        """Publish a message through the node.

        Raises NodeError.
        """
        await self._node.publish(self._pubsub_topic, message)

    async def _speak(self, core: Core, happened: list[Event]) -> None:
        """Publish everything that is due.

        Raises NodeError; what was not sent is kept for a moment.
        """
        await self._carry_out(core, core.tick(self._clock_ns()), happened)

    async def _listen(self, core: Core, happened: list[Event]) -> None:
        """Take in everything that is new.

        Raises NodeError.
        """
        line = self._line(core)
        for content_topic in tuple(line.history):
            await self._hear(core, await line.reader.history(content_topic), happened)
            line.history.remove(content_topic)
        await self._hear(core, await line.reader.new(core.subscriptions(), now_ns=self._clock_ns()), happened)

    async def _hear(self, core: Core, messages: Iterable[WakuMessage], happened: list[Event]) -> None:
        for message in messages:
            await self._carry_out(core, core.receive(message, self._clock_ns()), happened)

    async def _carry_out(self, core: Core, step: Step, happened: list[Event]) -> None:
        line = self._line(core)
        line.unsent += step.messages
        line.history += step.history
        happened += step.events
        if self._on_event:
            for event in step.events:
                self._on_event(core, event)
        while line.unsent:
            await self._publish_first(line)

    async def _publish_first(self, line: "_Line") -> None:
        """Publish the first message of the line. It is taken out before, because another task may drive the same client
        meanwhile.
        """
        message = line.unsent.pop(0)
        if self._clock_ns() - message.timestamp_ns >= UNSENT_NS:
            return
        try:
            await self.publish(message)
        except NodeError:
            line.unsent.insert(0, message)
            raise

    def _line(self, core: Core) -> "_Line":
        if core not in self._lines:
            since_ns = self._clock_ns() - CLOCK_SKEW_NS
            self._lines[core] = _Line(StoreReader(self._node, self._pubsub_topic, since_ns=since_ns))
        return self._lines[core]


@dataclass(slots=True)
class _Line:
    """The state between one client and the node: how far it has read, and what it could not yet publish or read."""

    reader: StoreReader
    unsent: list[WakuMessage] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def _is_accepted(slot: ServerState) -> bool:
    return slot.standing is Standing.ACCEPTED


def _is_answered(client: RegisteringClient) -> bool:
    """Return whether there is nothing to wait for. One refusal is enough."""
    return any(slot.error for slot in client.state.servers) or all(map(_is_accepted, client.state.servers))
