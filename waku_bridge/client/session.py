"""The network side of the client cores: it publishes and reads their messages at one Waku node."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from notifications.messages import PushNotification
from waku_bridge.client.core import SECOND_NS, Core
from waku_bridge.client.events import Destination, Event, Notified, Step
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.state import Standing
from waku_bridge.codec.wire import message_hash
from waku_bridge.dialect import BadNodeMessage, NodeError, from_json
from waku_bridge.messages import RegistrationError, WakuMessage
from waku_bridge.node import WakuNode

DEFAULT_PUBSUB_TOPIC = "/waku/2/rs/16/32"
POLL_SECONDS = 0.2
# Messages that no node took within this time are dropped, because stores refuse a timestamp of 20 s ago. The core sends
# them again with a new one.
UNSENT_NS = 15 * SECOND_NS
PAGE_SIZE = 100  # nwaku's maximum
MAX_TOPICS = 10  # nwaku's maximum on a page after the first
# Stores accept messages within 20 s of their clock, so an answer is dated at most this long before its question.
CLOCK_SKEW_NS = 20 * 10**9
# How late a message may arrive: the skew, twice, and the time of archiving.
OVERLAP_NS = 60 * 10**9


class SessionError(Exception):
    """A method of `Session` did not reach its goal."""


class NoAnswer(SessionError):  # noqa: N818 - says what is wrong
    """No server answered in time."""


class RegistrationRefused(SessionError):  # noqa: N818 - says what is wrong
    """A server refused the registration.

    ``error`` is the wire's ErrorType, or an unknown number. ``server`` has 33 bytes.
    """

    def __init__(self, error: int, server: bytes) -> None:
        known = error in {known.value for known in RegistrationError}
        super().__init__(RegistrationError(error).name if known else f"error {error}")
        self.error = error
        self.server = server


class StoreReader:
    """A reader of a store's messages on some content topics since ``since_ns`` (Unix time), each message once.

    It does not read the relay cache, because that empties the cache, and on a shared node the server would miss
    messages. The store is in the order of the senders' clocks, and a message may be archived after a later one. So each
    query goes back a minute, and messages that were seen are recognised by their hashes.
    """

    def __init__(self, node: WakuNode, pubsub_topic: str, *, since_ns: int) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._begin_ns = since_ns
        self._since_ns = since_ns
        self._seen: dict[bytes, int] = {}  # timestamp by hash

    async def new(self, content_topics: Iterable[str], *, now_ns: int) -> list[WakuMessage]:
        """Return the messages that arrived since the last call.

        Raises NodeError. The next call then starts at the same time as this one.
        """
        topics = sorted(content_topics)
        groups = [topics[begin : begin + MAX_TOPICS] for begin in range(0, len(topics), MAX_TOPICS)]
        messages = [message for group in groups for message in await self._since(",".join(group))]
        by_hash = {message_hash(self._pubsub_topic, message): message for message in messages}
        fresh = {digest: message for digest, message in by_hash.items() if digest not in self._seen}
        self._since_ns = max(self._begin_ns, now_ns - OVERLAP_NS)
        self._seen |= {digest: message.timestamp_ns for digest, message in fresh.items()}
        self._seen = {digest: at_ns for digest, at_ns in self._seen.items() if at_ns >= self._since_ns}
        return list(fresh.values())

    async def history(self, content_topic: str) -> list[WakuMessage]:
        """Return the latest page of one content topic, oldest first, also messages that were seen. Raises NodeError."""
        page = await self._page(content_topic, ascending="false")
        return sorted(filter(None, map(_read, page)), key=lambda message: message.timestamp_ns)

    async def _since(self, content_topics: str) -> list[WakuMessage]:
        """Return the messages of all pages.

        A page begins at the last time of the previous one. A full page within one nanosecond is the end.
        """
        found: list[WakuMessage] = []
        start_ns = self._since_ns
        while True:
            page = await self._page(content_topics, ascending="true", startTime=start_ns)
            messages = [message for message in map(_read, page) if message]
            found += messages
            last_ns = max((message.timestamp_ns for message in messages), default=start_ns)
            if len(page) < PAGE_SIZE or last_ns == start_ns:
                return found
            start_ns = last_ns

    async def _page(self, content_topics: str, **query: Any) -> list[Any]:
        return await self._node.stored(
            pubsubTopic=self._pubsub_topic, contentTopics=content_topics, pageSize=PAGE_SIZE, **query
        )


def _read(raw: Any) -> WakuMessage | None:
    """Return one message of a page, or None for an entry that is no message."""
    try:
        return from_json(raw)
    except BadNodeMessage:
        return None


class Session:
    """One node and one shard, for any number of clients at the same time.

    A client sends and receives only while a method of the session runs: `register`, `look_up` or `notify`, or `drive`,
    on a phone without end. ``on_event`` is called with each client and event. Every method raises NodeError when the
    node does not take its first messages. While a method waits for an answer, it repeats failed requests to the node
    until the time is up.
    """

    def __init__(
        self,
        node: WakuNode,
        *,
        pubsub_topic: str = DEFAULT_PUBSUB_TOPIC,
        poll_seconds: float = POLL_SECONDS,
        clock_ns: Callable[[], int] = time.time_ns,
        on_event: Callable[[Core, Event], object] = lambda _core, _event: None,
    ) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._poll_seconds = poll_seconds
        self._clock_ns = clock_ns
        self._on_event = on_event
        self._lines: WeakKeyDictionary[Core, _Line] = WeakKeyDictionary()

    async def register(self, client: RegisteringClient, *, timeout_seconds: float = 10.0) -> None:
        """Register the client's current version until all servers have accepted it, and publish its contact code.

        Raises NoAnswer, or RegistrationRefused as soon as one server refuses. After NoAnswer, another call repeats the
        registration to the servers that have not answered.
        """
        if any(slot.standing is not Standing.ACCEPTED and slot.attempts for slot in client.state.servers):
            client.retry()
        await self.drive(client, lambda: _is_answered(client), timeout_seconds=timeout_seconds)
        for slot in client.state.servers:
            if slot.error:
                raise RegistrationRefused(slot.error, slot.server)
        if not _is_accepted(client):
            raise NoAnswer("the server did not answer the registration")

    async def look_up(
        self, sender: SendingClient, client: bytes, *, timeout_seconds: float = 10.0
    ) -> tuple[Destination, ...]:
        """Query where a client (33 bytes) can be notified, and return all verified destinations.

        The result is empty when there were answers but none for this sender, for instance because it is no contact.
        Raises NoAnswer when no destination is known and no server answered within the sender's timeouts.
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
        content: PushNotification,
        message_id: bytes,
        *,
        timeout_seconds: float = 30.0,
    ) -> Notified:
        """Have a client (33 bytes) notified about the Status message with this id, with as many requests as needed.

        Raises NoAnswer when it is not settled in time. Another call goes on waiting, and repeats no request.
        """
        sender.notify(client, content, message_id)
        await self.drive(sender, lambda: sender.result(client, message_id) is not None, timeout_seconds=timeout_seconds)
        result = sender.result(client, message_id)
        if result is None:
            raise NoAnswer("the notification is not settled")
        return result

    async def drive(self, core: Core, is_done: Callable[[], object], *, timeout_seconds: float) -> None:
        """Drive a client until ``is_done`` and all is sent, or until the time is up.

        It repeats what is due, publishes periodic contact codes and takes in late answers.
        """
        deadline = time.monotonic() + timeout_seconds
        await self._publish_due(core)
        while (not is_done() or self._line(core).unsent) and time.monotonic() < deadline:
            await asyncio.sleep(self._poll_seconds)
            with suppress(NodeError):
                await self._read_new(core)
            with suppress(NodeError):
                await self._publish_due(core)

    async def publish(self, message: WakuMessage) -> None:
        """Publish a message through the node. Raises NodeError."""
        await self._node.publish(self._pubsub_topic, message)

    async def _read_new(self, core: Core) -> None:
        line = self._line(core)
        for content_topic in tuple(line.history):
            for message in await line.reader.history(content_topic):
                self._note(core, core.receive(message, self._clock_ns()))
            line.history.remove(content_topic)
        for message in await line.reader.new(core.subscriptions(), now_ns=self._clock_ns()):
            self._note(core, core.receive(message, self._clock_ns()))

    def _note(self, core: Core, step: Step) -> None:
        """Keep the messages of a step until they are published. The reader returns no message a second time."""
        line = self._line(core)
        line.unsent += step.messages
        line.history += step.history
        for event in step.events:
            self._on_event(core, event)

    async def _publish_due(self, core: Core) -> None:
        """Publish all messages that are due. Raises NodeError. Messages that were not sent are kept for `UNSENT_NS`."""
        self._note(core, core.tick(self._clock_ns()))
        unsent = self._line(core).unsent
        while unsent:
            message = unsent.pop(0)  # first, because another task may drive the same client meanwhile
            try:
                if self._clock_ns() - message.timestamp_ns < UNSENT_NS:
                    await self.publish(message)
            except NodeError:
                unsent.insert(0, message)
                raise

    def _line(self, core: Core) -> "_Line":
        if core not in self._lines:
            since_ns = self._clock_ns() - CLOCK_SKEW_NS
            self._lines[core] = _Line(StoreReader(self._node, self._pubsub_topic, since_ns=since_ns))
        return self._lines[core]


@dataclass(slots=True)
class _Line:
    """The state of one client at the node: how far it has read, and what is still to be published or read."""

    reader: StoreReader
    unsent: list[WakuMessage] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def _is_answered(client: RegisteringClient) -> bool:
    """Return whether one server has refused or all have accepted."""
    return any(slot.error for slot in client.state.servers) or _is_accepted(client)


def _is_accepted(client: RegisteringClient) -> bool:
    return all(slot.standing is Standing.ACCEPTED for slot in client.state.servers)
