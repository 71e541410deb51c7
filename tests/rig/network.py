"""World around the server, as a test drives it: phones, the Waku node between them, and gorush at the end."""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import psycopg
from coincurve import PrivateKey

from kit.http import Connections
from notifications.messages import PushNotification, Report
from tests.rig.server import PUBSUB_TOPIC, SERVER, Fleet, wait_until
from waku_bridge.client import state as addresses
from waku_bridge.client.events import Destination, Notified
from waku_bridge.client.notices import ask_to_push, one_to_one
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.sending import SendingClient
from waku_bridge.client.session import CLOCK_SKEW_NS, NoAnswer, Session, StoreReader
from waku_bridge.client.state import Address, Preferences, Standing, new_state
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import Encoded, decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.wire import message_hash
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.node import WakuNode

# Long enough for a busy machine: nothing here measures time.
TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.05
APP_TOPIC = "im.status.ethereum"
CONNECTIONS = 64
CLIENTS_AT_ONCE = 4  # each polls the node
MAX_RECORD_BYTES = 2**30  # all pushes of a load
OPEN_STATES = ("pending", "in_flight", "retrying", "ambiguous")

T = TypeVar("T")


class Sender:
    """A sender of notifications, with the reference client or in single requests that a test repeats and spoils.

    ``core`` is new for every look-up, so that it has only the server's latest answer.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.ephemeral = new_identity()
        self.core = self.new_core()

    def new_core(self) -> SendingClient:
        return SendingClient(self.identity, os.urandom, answer_seconds=TIMEOUT_SECONDS, gather_seconds=0)

    def one_to_one(self, message: bytes = b"") -> PushNotification:
        return one_to_one(self.identity.pub33, message)

    def request(
        self, destinations: Sequence[Destination], content: PushNotification, message_id: bytes, *, timestamp_ns: int
    ) -> Encoded:
        return ask_to_push(
            destinations,
            content,
            message_id,
            signer=self.ephemeral,
            timestamp_ns=timestamp_ns,
            random_bytes=os.urandom,
        )


class Network:
    def __init__(
        self, node_url: str, gorush_url: str, database_url: str, server: bytes, *, node_type: type[WakuNode] = WakuNode
    ) -> None:
        self.server = server
        self._gorush_url = gorush_url
        self._runner = asyncio.Runner()
        self._http = Connections(silent_seconds=TIMEOUT_SECONDS, max_answer_bytes=MAX_RECORD_BYTES)
        self._node = node_type(node_url, self._http)
        self._session = Session(self._node, pubsub_topic=PUBSUB_TOPIC, poll_seconds=POLL_SECONDS)
        self._database = psycopg.connect(database_url, autocommit=True)

    def close(self) -> None:
        self._run(self._http.close())
        self._runner.close()
        self._database.close()

    def phone(self, address: Address | None = None, preferences: Preferences | None = None) -> RegisteringClient:
        """Return a registered phone, which is on Android by default."""
        phone = unregistered_phone()
        phone.change(address or android(), preferences)
        self.register(phone)
        return phone

    def phones(self, addressed: Iterable[tuple[Sender, Address]]) -> list[tuple[Destination, ...]]:
        """Register a phone for each address, several at a time. Return where its sender finds it."""
        found = (self._found(sender, address) for sender, address in addressed)
        return self._run(_all(found, at_once=CLIENTS_AT_ONCE))

    async def _found(self, sender: Sender, address: Address) -> tuple[Destination, ...]:
        phone = unregistered_phone()
        phone.change(address)
        phone.use([self.server])
        await self._session.register(phone, timeout_seconds=TIMEOUT_SECONDS)
        return await self._session.look_up(sender.new_core(), phone.identity.pub33, timeout_seconds=TIMEOUT_SECONDS)

    def register(self, phone: RegisteringClient) -> Standing:
        """Send the phone's outstanding messages to the server."""
        phone.use([self.server])
        self._run(self._session.register(phone, timeout_seconds=TIMEOUT_SECONDS))
        return phone.standing(self.server).standing

    def query(
        self, sender: Sender, phone: RegisteringClient, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> tuple[Destination, ...]:
        """Query the server for the phone's user."""
        sender.core = sender.new_core()
        return self._run(self._session.look_up(sender.core, phone.identity.pub33, timeout_seconds=timeout_seconds))

    def notify(
        self,
        sender: Sender,
        destinations: Sequence[Destination],
        content: PushNotification | None = None,
        message_id: bytes | None = None,
    ) -> tuple[Report, ...]:
        """Send one request, independently of earlier ones, and return the server's reports.

        By default it is for a new one-to-one message.
        """
        content, message_id = content or sender.one_to_one(), message_id or os.urandom(32)
        request = sender.request(destinations, content, message_id, timestamp_ns=time.time_ns()).message
        return self._run(self._ask(sender, request, message_id))

    def send(self, sender: SendingClient, phone: RegisteringClient, message_id: bytes | None = None) -> Notified:
        """Notify about one message as the reference client does, by default about a new one."""
        asking = self._session.notify(
            sender,
            phone.identity.pub33,
            sender.one_to_one(),
            message_id or os.urandom(32),
            timeout_seconds=TIMEOUT_SECONDS,
        )
        return self._run(asking)

    def follow(self, sender: SendingClient, phone: RegisteringClient) -> tuple[Destination, ...]:
        """Return the destinations that a sender finds in the phone's contact code."""
        sender.follow(phone.identity.pub33)
        known = partial(sender.destinations, phone.identity.pub33)
        self._run(self._session.drive(sender, known, timeout_seconds=TIMEOUT_SECONDS))
        return known()

    def publish(self, *messages: WakuMessage) -> list[bytes]:
        """Publish messages at once. Return the hashes that the inbox has for them."""
        self._run(_all(self._session.publish(message) for message in messages))
        return [message_hash(PUBSUB_TOPIC, message) for message in messages]

    def replies(self, sender: Sender, *, since_ns: int) -> list[PushResponse]:
        """Return every answer in the node's store to requests of this sender, each envelope once."""
        return self._run(self._new_replies(sender, self._reader(since_ns)))

    def pushes(self) -> list[dict[str, Any]]:
        """Return the pushes that the development gorush would have sent to Apple and Google, oldest first."""
        return list(self._ask_gorush("GET", "/dev/pushes?limit=1000000")["pushes"])

    def pushes_to(self, address: Address) -> list[dict[str, Any]]:
        """Return the pushes to one device, once none is under way."""
        self.wait_until_delivered()
        return [push for push in self.pushes() if push["token"] == address.device_token]

    def break_gorush(self, **faults: object) -> None:
        """Set faults of gorush, and fail if it did not accept them, as the test would otherwise prove nothing."""
        self._ask_gorush("POST", "/dev/faults", json.dumps(faults).encode())

    def _ask_gorush(self, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
        answer = self._run(self._http.request(method, self._gorush_url + path, body=content))
        assert answer.status == HTTPStatus.OK
        return dict(json.loads(answer.body))

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, values).fetchall()

    def wait_until_delivered(self, *, seconds: float = TIMEOUT_SECONDS) -> None:
        count = "SELECT count(*) FROM notifications_notification WHERE state = ANY(%s)"
        wait_until(lambda: self.rows(count, list(OPEN_STATES)) == [(0,)], seconds=seconds, what="all delivered")

    def wait_until_answered(self) -> None:
        """Wait until no reply is due or in the outbox."""
        waiting = """
            SELECT (SELECT count(*) FROM notifications_notificationrequest WHERE state = 'waiting')
                 + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
        """
        wait_until(lambda: self.rows(waiting) == [(0,)], what="all answered")

    def how_it_ended(self, envelope_hash: bytes) -> tuple[str, str]:
        """Return state and reason of an envelope, once it has been processed."""
        sql = """
            SELECT state, reason FROM waku_bridge_inboundenvelope
            WHERE hash = %s AND state NOT IN ('received', 'postponed')
        """
        wait_until(lambda: self.rows(sql, envelope_hash), what="the envelope is processed")
        return self.rows(sql, envelope_hash)[0]

    async def _ask(self, sender: Sender, request: WakuMessage, message_id: bytes) -> tuple[Report, ...]:
        """Publish a request, and wait for an answer that was not there before."""
        reader = self._reader(request.timestamp_ns)
        await self._new_replies(sender, reader)
        await self._session.publish(request)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for reply in await self._new_replies(sender, reader):
                if reply.message_id == message_id:
                    return reply.reports
            await asyncio.sleep(POLL_SECONDS)
        raise NoAnswer("the server did not answer the request")

    def _reader(self, since_ns: int) -> StoreReader:
        return StoreReader(self._node, PUBSUB_TOPIC, since_ns=since_ns - CLOCK_SKEW_NS)

    async def _new_replies(self, sender: Sender, reader: StoreReader) -> list[PushResponse]:
        content_topic = wire.content_topic(wire.partitioned_name(sender.ephemeral.pub33))
        messages = await reader.new([content_topic], now_ns=time.time_ns())
        bodies = [_opened(message, sender.ephemeral) for message in messages]
        return [body for body in bodies if isinstance(body, PushResponse)]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # The loop stood still since the last call, and first has to process connections that ended meanwhile.
        self._runner.run(asyncio.sleep(0.01))
        return self._runner.run(coroutine)


def network_of(fleet: Fleet) -> Network:
    """Connect to the node, gorush and database of a server."""
    urls = [fleet.environment[name] for name in ("WAKU_NODES", "GORUSH_URL", "DATABASE_URL")]
    return Network(*urls, SERVER.pub33)


def _opened(message: WakuMessage, listener: Identity) -> object:
    try:
        return decode(message.payload, [listener], listener).body
    except CodecError:  # for another key: one in 5000 keys shares the topic
        return None


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]], *, at_once: int = CONNECTIONS) -> list[T]:
    """Run several coroutines at once, by default as many as the HTTP client has connections."""
    free = asyncio.Semaphore(at_once)

    async def run(coroutine: Coroutine[Any, Any, T]) -> T:
        async with free:
            return await coroutine

    return await asyncio.gather(*map(run, coroutines))


def new_identity() -> Identity:
    return Identity(PrivateKey())


def new_sender(identity: Identity | None = None) -> Sender:
    return Sender(identity or new_identity())


def unregistered_phone(identity: Identity | None = None) -> RegisteringClient:
    """Return an installation of a user, by default of a new one."""
    state = new_state(random_bytes=os.urandom, access_token=str(uuid.uuid4()))
    return RegisteringClient(identity or new_identity(), state, os.urandom)


def android(fate: str = "") -> Address:
    """Return an Android address. ``fate`` is a prefix from the development gorush's table of outcomes, such as
    ``dead-``.
    """
    return addresses.android(os.urandom, fate)


def iphone(fate: str = "") -> Address:
    return addresses.iphone(APP_TOPIC, os.urandom, fate)
