"""A load generator: devices are registered, and notifications requested at a steady rate, however slow the server is.

The loop is open: the moment of every request is fixed before the first is sent. A request goes out at its moment with
any number of others unanswered, and its latencies count from there. So the measure of a server that stalls is what its
senders would see.

See docs/canary.md.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from math import ceil
from typing import Any, TypeVar

import httpx
import orjson

from kit.buckets.bucket import BucketLimits
from kit.figures import Distribution, distribution
from kit.http.connections import HttpClient
from waku_bridge.client.core import new_identity
from waku_bridge.client.events import Destination
from waku_bridge.client.notices import ask_to_push, one_to_one
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.session import CLOCK_SKEW_NS, PAGE_SIZE, Session
from waku_bridge.client.state import android, new_state
from waku_bridge.codec import topics
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.node import BadNodeMessage, NodeError, WakuNode, from_json

REGISTER_AT_ONCE = 16
# A registration without an answer within this time fails the load.
REGISTER_TIMEOUT_SECONDS = 30.0
# Fewer senders than the ten topics that one store query may name.
SENDERS = 8
# The time to build requests is estimated from a sample. The margin is for a machine that is busy with other work.
SAMPLE, MARGIN, MARGIN_SECONDS = 20, 2.0, 1.0
READ_SECONDS, POLL_SECONDS = 0.05, 0.5
# Replies are archived nearly in the order of their dates. A reply that is later than this is read at the end.
OVERLAP_NS = 500_000_000
NO_CIPHERTEXT = "0x"
PUSHES_PAGE = 10_000

Item = TypeVar("Item")
# An identifier, and when it arrived (Unix nanoseconds).
Arrival = tuple[str, int]


# Judging --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals of one kind. ``latency_ms`` is the time from the due moment of each to its first arrival."""

    arrived: int
    lost: int
    doubled: int
    latency_ms: Distribution | None


def arrivals(due_ns: Mapping[str, int], arrived: Sequence[Arrival]) -> Arrivals:
    """Return the arrivals of these identifiers, given when each was due (Unix nanoseconds), and of no others."""
    first: dict[str, int] = {}
    doubled: set[str] = set()
    for identifier, at_ns in sorted(arrived, key=lambda arrival: arrival[1]):
        if identifier in first:
            doubled.add(identifier)
        elif identifier in due_ns:
            first[identifier] = at_ns
    latencies = [(at_ns - due_ns[identifier]) / 1e6 for identifier, at_ns in first.items()]
    return Arrivals(len(first), len(due_ns) - len(first), len(doubled), distribution(latencies))


@dataclass(slots=True)
class Sent:
    """The result of sending. ``lags_ms`` are the delays of starts, and ``publish_ms`` the times that the peer took.

    ``refused`` counts the requests that the node refused, by its error code, and ``not_sent`` has their numbers.
    """

    lags_ms: list[float] = field(default_factory=list)
    publish_ms: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    not_sent: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Generator:
    """The delay with which requests left, and the time that the node took.

    Where the delay is near the latencies, they say nothing about the server.
    """

    lag_ms: Distribution | None
    publish_ms: Distribution | None

    @classmethod
    def of(cls, sent: Sent) -> "Generator":
        return cls(distribution(sent.lags_ms), distribution(sent.publish_ms))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load. ``pushes`` is None when gorush keeps no record.

    ``merged`` counts the requests that were answered with success, and whose phone got a later wake-up instead of a
    push of their own, because they were beyond a limit. ``refused`` counts requests by the reason with which the node
    or a report refused them. They are not lost.
    """

    requests: int
    pushes: Arrivals | None
    replies: Arrivals
    merged: int
    refused: dict[str, int]
    generator: Generator

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was lost or doubled. A push that a limit merged or refused is accounted for."""
        both = [self.replies, *([self.pushes] if self.pushes else [])]
        return sum(each.lost + each.doubled for each in both) == 0


# Sending and recording ------------------------------------------------------------------------------------------------


async def send_on_time(items: Sequence[Item], due_ns: Sequence[int], send: Callable[[Item], Awaitable[None]]) -> Sent:
    """Send each item when it is due. The loop is open: nothing waits for an answer, nor for the node."""
    sent = Sent()
    async with asyncio.TaskGroup() as in_flight:
        for number, (item, at_ns) in enumerate(zip(items, due_ns, strict=True)):
            # Also for a late one: tasks in flight must still get to run.
            await asyncio.sleep(max(0, at_ns - time.time_ns()) / 1e9)
            in_flight.create_task(_send(number, item, at_ns, send, sent))
    return sent


async def _send(number: int, item: Item, at_ns: int, send: Callable[[Item], Awaitable[None]], sent: Sent) -> None:
    started_ns = time.time_ns()
    sent.lags_ms.append((started_ns - at_ns) / 1e6)
    try:
        await send(item)
    except NodeError as error:
        sent.refused[error.code] += 1
        sent.not_sent.append(number)
    else:
        sent.publish_ms.append((time.time_ns() - started_ns) / 1e6)


class PushRecord:
    """The pushes that the development gorush recorded, or the fakes behind a real one."""

    def __init__(self, gorush_url: str, client: HttpClient) -> None:
        self._url = gorush_url
        self._client = client
        self._last_id = 0
        self._pushes: list[Arrival] = []

    async def skip(self) -> None:
        """Forget what was recorded so far."""
        await self.read()
        self._pushes = []

    async def read(self) -> list[Arrival] | None:
        """Return the accepted pushes since `skip`, or None when that gorush keeps no record.

        The ciphertext identifies a push, at Waku in hex. A wake-up without one has the key hash of its recipient.
        """
        while True:
            query = f"since={self._last_id}&limit={PUSHES_PAGE}"
            try:
                answer = await self._client.request("GET", f"{self._url}/dev/pushes?{query}")
            except httpx.TransportError:
                return None
            if answer.status_code != HTTPStatus.OK:
                return None
            page = orjson.loads(answer.content)
            if not page["pushes"]:
                return self._pushes
            accepted = [push for push in page["pushes"] if not push["error"]]
            self._pushes += [(_identifier(push["data"]), push["received_ms"] * 1_000_000) for push in accepted]
            self._last_id = page["last_id"]


def _identifier(data: Mapping[str, str]) -> str:
    ciphertext = data.get("encryptedMessage", NO_CIPHERTEXT)
    of_waku = data.get("publicKey", "") if ciphertext == NO_CIPHERTEXT else ciphertext
    return data.get("e", "") or of_waku.removeprefix("0x")


async def judge_when_recorded(
    record: PushRecord, judge: Callable[[list[Arrival] | None], Result], *, deadline: float
) -> Result:
    """Return the result as soon as no push is missing, or at a moment of the monotonic clock.

    A wake-up for what is beyond a limit goes out when the limit allows it.
    """
    while True:
        result = judge(await record.read())
        if not (result.pushes and result.pushes.lost) or time.monotonic() > deadline:
            return result
        await asyncio.sleep(POLL_SECONDS)


# Through Waku ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadRequests:
    """The load requests. Request ``n`` is about message ``message_ids[n]``, due and dated at ``due_ns[n]`` (Unix time),
    to the user with the key hash ``recipients[n]``.

    They are sealed before the first is sent, so that sending is cheap. The message id is also the payload for the
    phone, so that a push can be traced.
    """

    message_ids: list[bytes]
    due_ns: list[int]
    messages: list[WakuMessage]
    senders: tuple[Identity, ...]
    recipients: list[bytes]


@dataclass(frozen=True, slots=True)
class WakuLoad:
    """A load on the server with the public key ``server``, through a node. ``say`` is called at each step."""

    node: WakuNode
    server: bytes
    pubsub_topic: str
    say: Callable[[str], object] = lambda _: None

    async def register(self, count: int) -> list[RegisteringClient]:
        """Register new phones, each of a user of its own.

        Raises what `Session.register` raises, as soon as one fails.
        """
        self.say(f"Registering {count} devices.")
        phones = []
        for _ in range(count):
            state = new_state(self.server, random_bytes=os.urandom)
            phones.append(RegisteringClient(new_identity(os.urandom), state, os.urandom))
            phones[-1].change(android(os.urandom))
        await self._register_all(phones)
        return phones

    async def unregister(self, phones: Sequence[RegisteringClient]) -> None:
        self.say("Unregistering them.")
        for phone in phones:
            phone.unregister()
        await self._register_all(phones)

    def build(self, phones: Sequence[RegisteringClient], *, rate: float, seconds: float) -> LoadRequests:
        """Build ``rate`` requests per second, evenly spread, due from when all are built. Each notifies one phone."""
        count = max(1, round(rate * seconds))
        self.say(f"Building {count} requests.")
        senders = tuple(new_identity(os.urandom) for _ in range(SENDERS))
        destinations = [self._destination(phone) for phone in phones]
        begin_ns = time.time_ns() + _building_ns(destinations[0], senders[0], count)
        requests = LoadRequests([], [], [], senders, [])
        for number in range(count):
            destination, message_id = destinations[number % len(destinations)], os.urandom(32)
            due_ns = begin_ns + round(number * 1e9 / rate)
            requests.message_ids.append(message_id)
            requests.due_ns.append(due_ns)
            requests.messages.append(_request(destination, senders[number % SENDERS], message_id, due_ns))
            requests.recipients.append(destination.public_key_hash)
        return requests

    async def run(self, requests: LoadRequests, record: PushRecord, *, drain_seconds: float) -> Result:
        """Send the requests when they are due, and wait for what is missing."""
        await record.skip()
        reader = ReplyReader(self.node, self.pubsub_topic, requests.senders)
        following = asyncio.create_task(reader.follow())
        self.say("Sending them.")
        sent = await send_on_time(requests.messages, requests.due_ns, partial(self.node.publish, self.pubsub_topic))
        self.say("Waiting for answers.")
        deadline, is_waiting = time.monotonic() + drain_seconds, True
        while is_waiting and time.monotonic() < deadline:
            is_waiting = bool(reader.unanswered(requests.message_ids))
            await asyncio.sleep(POLL_SECONDS)  # and a moment longer: the second answer to a request comes later
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await reader.read_again()
        replies = reader.replies()
        return await judge_when_recorded(
            record, lambda pushes: evaluate(requests, sent, replies, pushes), deadline=deadline
        )

    async def _register_all(self, phones: Sequence[RegisteringClient]) -> None:
        session, free = Session(self.node, pubsub_topic=self.pubsub_topic), asyncio.Semaphore(REGISTER_AT_ONCE)

        async def register(phone: RegisteringClient) -> None:
            async with free:
                await session.register(phone, timeout_seconds=REGISTER_TIMEOUT_SECONDS)

        async with asyncio.TaskGroup() as group:
            for phone in phones:
                group.create_task(register(phone))

    def _destination(self, phone: RegisteringClient) -> Destination:
        """Return the answer that a query would get. No query is sent, because the phone is ours."""
        return Destination(
            client=phone.identity.pub33,
            server=self.server,
            public_key_hash=phone.identity.key_hash,
            installation_id=phone.installation_id,
            access_token=phone.access_token,
            version=phone.version,
        )


def phones_for(rate: float, seconds: float, limits: BucketLimits) -> int:
    """Return the number of phones of which none gets more pushes than the limits of an address allow."""
    return max(ceil(rate * min(seconds, limit.seconds) / limit.tokens) for limit in limits)


def _building_ns(destination: Destination, sender: Identity, count: int) -> int:
    """Return an estimate of the time to build this many requests, with a margin.

    A store admits messages dated up to 20 s ahead. So the due times must be known before the requests are built.
    """
    started = time.monotonic()
    for _ in range(SAMPLE):
        _request(destination, sender, bytes(32), time.time_ns())
    each = (time.monotonic() - started) / SAMPLE
    return round((each * count * MARGIN + MARGIN_SECONDS) * 1e9)


def _request(destination: Destination, sender: Identity, message_id: bytes, at_ns: int) -> WakuMessage:
    content = one_to_one(sender.pub33, message_id)
    return ask_to_push(
        [destination], content, message_id, signer=sender, timestamp_ns=at_ns, random_bytes=os.urandom
    ).message


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request about a message, and when it was read (Unix nanoseconds)."""

    message_id: bytes
    is_success: bool
    at_ns: int


class ReplyReader:
    """A reader of the replies to some senders in a store.

    During the load it only keeps the messages, because opening one costs as much as a request. A message that the store
    has lost, or never had, is not read.
    """

    def __init__(self, node: WakuNode, pubsub_topic: str, senders: Iterable[Identity]) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._senders: dict[str, list[Identity]] = {}
        for sender in senders:
            content_topic = topics.content_topic(topics.partitioned_name(sender.pub33))
            self._senders.setdefault(content_topic, []).append(sender)
        self._newest_ns = self._begin_ns = time.time_ns() - CLOCK_SKEW_NS
        self._noted: dict[bytes, tuple[Any, int]] = {}  # raw message and when it was read, by hash
        self._opened: dict[bytes, Reply | None] = {}

    async def follow(self) -> None:
        """Read new messages until cancelled."""
        while True:
            await self._poll(self._newest_ns - OVERLAP_NS)
            await asyncio.sleep(READ_SECONDS)

    async def read_again(self) -> None:
        """Read everything once more, for messages that came out of order."""
        await self._poll(self._begin_ns)

    def replies(self) -> list[Reply]:
        """Return every answer to a request, opened. Each message is opened once."""
        for message_hash, noted in self._noted.items():
            if message_hash not in self._opened:
                self._opened[message_hash] = self._open(*noted)
        return [reply for reply in self._opened.values() if reply]

    def unanswered(self, message_ids: Collection[bytes]) -> int:
        """Return the number of these requests without an answer so far.

        The number of messages is not enough: other senders get answers on the same topics.
        """
        if len(self._noted) < len(message_ids):
            return len(message_ids) - len(self._noted)
        return len(set(message_ids) - {reply.message_id for reply in self.replies()})

    async def _poll(self, since_ns: int) -> None:
        more: dict[str, str] = {}
        while True:
            try:
                page = await self._node.store_page(
                    pubsubTopic=self._pubsub_topic,
                    contentTopics=",".join(self._senders),
                    startTime=since_ns,
                    ascending="true",
                    pageSize=PAGE_SIZE,
                    includeData="true",
                    **more,
                )
            except NodeError:  # the node is busy, and the next query finds the same messages
                return
            now_ns = time.time_ns()
            for entry in page.entries:
                self._note(entry.message_hash, entry.message, now_ns)
            if not page.cursor:
                return
            more = {"cursor": page.cursor}

    def _note(self, message_hash: bytes, raw: Any, now_ns: int) -> None:
        if message_hash not in self._noted and isinstance(raw, dict):
            self._noted[message_hash] = (raw, now_ns)
            timestamp = raw.get("timestamp")
            if isinstance(timestamp, int) and timestamp <= now_ns:
                self._newest_ns = max(self._newest_ns, timestamp)

    def _open(self, raw: Any, at_ns: int) -> Reply | None:
        try:
            message = from_json(raw)
            senders = self._senders.get(message.content_topic, [])
            body = decode(message.payload, senders, senders[0]).body if senders else None
        except (BadNodeMessage, CodecError):  # it is for another sender
            return None
        if not isinstance(body, PushResponse):
            return None
        is_success = bool(body.reports) and all(report.success for report in body.reports)
        return Reply(body.message_id, is_success, at_ns)


def evaluate(requests: LoadRequests, sent: Sent, replies: Sequence[Reply], pushes: Sequence[Arrival] | None) -> Result:
    """Return the result of a load through Waku."""
    identifiers = [message_id.hex() for message_id in requests.message_ids]
    due_ns = dict(zip(identifiers, requests.due_ns, strict=True))
    not_sent = {identifiers[number] for number in sent.not_sent}
    failed = {reply.message_id.hex() for reply in replies if not reply.is_success} & due_ns.keys()
    answered = {reply.message_id.hex() for reply in replies} - failed - not_sent
    pushed = {identifier for identifier, _ in pushes or ()}
    merged = (_woken(requests, pushes or ()) & answered) - pushed
    excused = merged | ((failed | not_sent) - pushed)
    return Result(
        requests=len(identifiers),
        pushes=None if pushes is None else arrivals(_without(due_ns, excused), pushes),
        replies=arrivals(_without(due_ns, not_sent), [(reply.message_id.hex(), reply.at_ns) for reply in replies]),
        merged=len(merged),
        refused=dict(sent.refused + Counter({"no success": len(failed - not_sent)})),
        generator=Generator.of(sent),
    )


def _woken(requests: LoadRequests, pushes: Sequence[Arrival]) -> set[str]:
    """Return the messages whose phone got a wake-up when they were due or later."""
    newest_ns: dict[str, int] = {}
    for recipient, at_ns in pushes:
        newest_ns[recipient] = max(at_ns, newest_ns.get(recipient, 0))
    each = zip(requests.message_ids, requests.due_ns, requests.recipients, strict=True)
    return {message_id.hex() for message_id, due_ns, to in each if newest_ns.get(to.hex(), -1) >= due_ns}


def _without(due_ns: Mapping[str, int], excused: Collection[str]) -> dict[str, int]:
    return {identifier: at_ns for identifier, at_ns in due_ns.items() if identifier not in excused}
