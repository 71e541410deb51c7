"""The network side of the client cores: publishes what they say and collects what answers them, over one Waku node."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

from notifications.messages import Report
from waku_bridge.client.answers import CLOCK_SKEW_NS, Answers
from waku_bridge.client.listening import Listener
from waku_bridge.client.registering import Answered, RegisteringClient
from waku_bridge.client.sending import Content, Destination, Found, Reported, SendingClient
from waku_bridge.codec.envelope import Encoded
from waku_bridge.messages import RegistrationError, WakuMessage
from waku_bridge.node import NodeError, WakuNode

DEFAULT_PUBSUB_TOPIC = "/waku/2/rs/16/32"
POLL_SECONDS = 0.2

Event = TypeVar("Event")


class SessionError(Exception):
    """A question did not lead to what was asked for.

    SessionError
    ├── NoAnswer                nobody answered in time
    └── RegistrationRefused     the server answered, and said no
    """


class NoAnswer(SessionError):  # noqa: N818 - says what is wrong
    pass


class RegistrationRefused(SessionError):  # noqa: N818 - says what is wrong
    """``error`` is the wire's ErrorType; an unknown number stays one."""

    def __init__(self, error: int) -> None:
        known = error in {known.value for known in RegistrationError}
        super().__init__(RegistrationError(error).name if known else f"error {error}")
        self.error = error


class Session:
    """One node and one shard. Holds no state of the clients, so any number of them may share it at the same time.

    Everything here raises NodeError when the node does not take the question; while waiting for the answer, a node that
    cannot be reached is asked again until the time is up.
    """

    def __init__(
        self,
        node: WakuNode,
        *,
        pubsub_topic: str = DEFAULT_PUBSUB_TOPIC,
        poll_seconds: float = POLL_SECONDS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._poll_seconds = poll_seconds
        self._clock_ns = clock_ns

    async def register(self, client: RegisteringClient, server: bytes, *, timeout_seconds: float = 10.0) -> Answered:
        """Tell a server (33 bytes) the client's current version. After NoAnswer, calling it again repeats the same.

        Raises NoAnswer or RegistrationRefused.
        """
        sent = client.encode_for(server, timestamp_ns=self._clock_ns())
        async with aclosing(self._ask(client, sent, timeout_seconds)) as events:
            async for event in events:
                if event.request_id == sent.request_id:
                    if not event.is_accepted:
                        raise RegistrationRefused(event.error)
                    return event
        raise NoAnswer("the server did not answer the registration")

    async def query(
        self, sender: SendingClient, client: bytes, *, timeout_seconds: float = 3.0
    ) -> tuple[Destination, ...]:
        """Where a client (33 bytes) can be notified: the first answer that this sender can use.

        Empty when there were answers but none for this sender, for instance because it is no contact. Raises NoAnswer
        when no server knows the client.
        """
        sent = sender.query(client, timestamp_ns=self._clock_ns())
        is_answered = False
        async with aclosing(self._ask(sender, sent, timeout_seconds)) as events:
            async for event in events:
                if isinstance(event, Found) and event.query_id == sent.message_id:
                    if event.destinations:
                        return event.destinations
                    is_answered = True
        if not is_answered:
            raise NoAnswer("no server answered the query")
        return ()

    async def notify(
        self,
        sender: SendingClient,
        destinations: Sequence[Destination],
        content: Content,
        message_id: bytes,
        *,
        timeout_seconds: float = 3.0,
    ) -> tuple[Report, ...]:
        """Have one server notify installations about the Status message of that id; one report each, in order.

        Raises NoAnswer, and ValueError when the destinations are not all of one server.
        """
        sent = sender.request(destinations, content, message_id, timestamp_ns=self._clock_ns())
        async with aclosing(self._ask(sender, sent, timeout_seconds)) as events:
            async for event in events:
                if isinstance(event, Reported) and event.message_id == message_id:
                    return event.reports
        raise NoAnswer("the server did not answer the request")

    async def publish(self, message: WakuMessage) -> None:
        await self._node.publish(self._pubsub_topic, message)

    async def _ask(self, client: Listener[Event], sent: Encoded, timeout_seconds: float) -> AsyncGenerator[Event, None]:
        """Publish, and yield what concerns the client until the time is up."""
        deadline = time.monotonic() + timeout_seconds
        answers = Answers(self._node, self._pubsub_topic, client, since_ns=sent.message.timestamp_ns - CLOCK_SKEW_NS)
        await answers.new()  # what is there before the question is no answer to it
        await self.publish(sent.message)
        while time.monotonic() < deadline:
            await asyncio.sleep(self._poll_seconds)
            with suppress(NodeError):
                for event in await answers.new():
                    yield event
