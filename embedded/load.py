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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import cycle
from math import ceil
from typing import Any, NamedTuple, TypeVar

import orjson

from embedded.figures import Distribution, distribution
from kit.buckets.bucket import BucketLimits
from kit.http import ERRORS, Connections
from waku_bridge.client.core import new_identity
from waku_bridge.client.events import Destination
from waku_bridge.client.notices import ask_to_push, one_to_one
from waku_bridge.client.registering import RegisteringClient
from waku_bridge.client.session import CLOCK_SKEW_NS, PAGE_SIZE, Session
from waku_bridge.client.state import android, new_state
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode
from waku_bridge.codec.errors import CodecError
from waku_bridge.codec.keys import Identity
from waku_bridge.dialect import BadNodeMessage, NodeError, from_json
from waku_bridge.messages import PushResponse, WakuMessage
from waku_bridge.node import WakuNode

REGISTER_AT_ONCE = 16
# A registration without an answer within this time fails the load.
REGISTER_TIMEOUT_SECONDS = 30.0
# Fewer senders than the ten topics that one store query may name.
SENDERS = 8
# The time to build a request, for which a quiet machine needs a quarter, and the time before the first is due.
BUILDING_NS, MARGIN_NS = 10**6, 10**9
READ_SECONDS, POLL_SECONDS = 0.05, 0.5
# Replies are archived nearly in the order of their dates. A reply that is later than this is read at the end.
OVERLAP_NS = 500_000_000
NO_CIPHERTEXT = "0x"

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

    ``refused`` has the items that the node refused, each with its error code.
    """

    lags_ms: list[float] = field(default_factory=list)
    publish_ms: list[float] = field(default_factory=list)
    refused: list[tuple[Any, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a load. ``pushes`` is None when gorush keeps no record.

    ``merged`` counts the requests that were answered with success, and whose phone got a later wake-up instead of a
    push of their own, because they were beyond a limit. ``refused`` counts requests by the reason with which the node
    or a report refused them. They are not lost. ``generator`` has the delay with which requests left (`lag_ms`) and the
    time that the node took (`publish_ms`). Where the delay is near the latencies, they say nothing about the server.
    """

    requests: int
    pushes: Arrivals | None
    replies: Arrivals
    merged: int
    refused: dict[str, int]
    generator: dict[str, Distribution | None]

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was lost or doubled. A push that a limit merged or refused is accounted for."""
        return all(each.lost == each.doubled == 0 for each in (self.replies, self.pushes) if each)


# Sending and recording ------------------------------------------------------------------------------------------------


async def send_on_time(items: Sequence[Item], due_ns: Sequence[int], send: Callable[[Item], Awaitable[None]]) -> Sent:
    """Send each item when it is due. The loop is open: nothing waits for an answer, nor for the node."""
    sent = Sent()

    async def send_one(item: Item, at_ns: int) -> None:
        started_ns = time.time_ns()
        sent.lags_ms.append((started_ns - at_ns) / 1e6)
        try:
            await send(item)
        except NodeError as error:
            sent.refused.append((item, error.code))
        else:
            sent.publish_ms.append((time.time_ns() - started_ns) / 1e6)

    async with asyncio.TaskGroup() as in_flight:
        for item, at_ns in zip(items, due_ns, strict=True):
            # Also for a late one: tasks in flight must still get to run.
            await asyncio.sleep(max(0, at_ns - time.time_ns()) / 1e9)
            in_flight.create_task(send_one(item, at_ns))
    return sent


class PushRecord:
    """The pushes that the development gorush recorded, or the fakes behind a real one."""

    def __init__(self, gorush_url: str, client: Connections) -> None:
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
            try:
                answer = await self._client.request("GET", f"{self._url}/dev/pushes?since={self._last_id}")
            except ERRORS:
                return None
            if answer.status != HTTPStatus.OK:
                return None
            page = orjson.loads(answer.body)
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


class LoadRequest(NamedTuple):
    """A request about the message ``identifier`` (hex), due and dated at ``due_ns`` (Unix time).

    ``recipient`` is the key hash of the notified user (hex). The request is sealed before the first one is sent, so
    that sending is cheap. The message id is also the payload for the phone, so that a push can be traced.
    """

    identifier: str
    due_ns: int
    recipient: str
    sender: Identity
    message: WakuMessage


@dataclass(frozen=True, slots=True)
class WakuLoad:
    """A load on the server with the public key ``server``, through a node."""

    node: WakuNode
    server: bytes
    pubsub_topic: str

    async def register(self, count: int) -> list[RegisteringClient]:
        """Register new phones, each of a user of its own.

        Raises what `Session.register` raises, as soon as one fails.
        """
        phones = []
        for _ in range(count):
            state = new_state(self.server, random_bytes=os.urandom)
            phones.append(RegisteringClient(new_identity(os.urandom), state, os.urandom))
            phones[-1].change(android(os.urandom))
        await self._register_all(phones)
        return phones

    async def unregister(self, phones: Sequence[RegisteringClient]) -> None:
        for phone in phones:
            phone.unregister()
        await self._register_all(phones)

    def build(self, phones: Sequence[RegisteringClient], *, rate: float, seconds: float) -> list[LoadRequest]:
        """Build ``rate`` requests per second, evenly spread, due from when all are built. Each notifies one phone."""
        senders = [new_identity(os.urandom) for _ in range(SENDERS)]
        count = max(1, round(rate * seconds))
        begin_ns = time.time_ns() + count * BUILDING_NS + MARGIN_NS
        due_ns = [begin_ns + round(number * 1e9 / rate) for number in range(count)]
        return [
            self._request(phone, sender, at_ns) for phone, sender, at_ns in zip(cycle(phones), cycle(senders), due_ns)
        ]

    async def run(self, requests: Sequence[LoadRequest], record: PushRecord, *, drain_seconds: float) -> Result:
        """Send the requests when they are due, and wait for what is missing."""
        await record.skip()
        reader = ReplyReader(self.node, self.pubsub_topic, [each.sender for each in requests])
        following = asyncio.create_task(reader.follow())
        due_ns = [each.due_ns for each in requests]
        sent = await send_on_time(requests, due_ns, lambda each: self.node.publish(self.pubsub_topic, each.message))
        deadline = time.monotonic() + drain_seconds
        is_complete = False
        while not is_complete and time.monotonic() < deadline:
            is_complete = reader.has_all([each.identifier for each in requests])
            await asyncio.sleep(POLL_SECONDS)  # and a moment longer: the second answer to a request comes later
        following.cancel()
        await reader.read()
        judge = partial(evaluate, requests, sent, reader.replies())
        return await judge_when_recorded(record, judge, deadline=deadline)

    async def _register_all(self, phones: Sequence[RegisteringClient]) -> None:
        session = Session(self.node, pubsub_topic=self.pubsub_topic)
        for first in range(0, len(phones), REGISTER_AT_ONCE):
            registering = [
                session.register(phone, timeout_seconds=REGISTER_TIMEOUT_SECONDS)
                for phone in phones[first : first + REGISTER_AT_ONCE]
            ]
            await asyncio.gather(*registering)  # unlike a TaskGroup, it raises the first error alone

    def _request(self, phone: RegisteringClient, sender: Identity, due_ns: int) -> LoadRequest:
        """Build a request with the destination that a query would find. No query is sent, because the phone is ours."""
        message_id, user = os.urandom(32), phone.identity
        destination = Destination(
            user.pub33, self.server, user.key_hash, phone.installation_id, phone.access_token, phone.version
        )
        content = one_to_one(sender.pub33, message_id)
        sealed = ask_to_push(
            [destination], content, message_id, signer=sender, timestamp_ns=due_ns, random_bytes=os.urandom
        )
        return LoadRequest(message_id.hex(), due_ns, user.key_hash.hex(), sender, sealed.message)


def phones_for(rate: float, seconds: float, limits: BucketLimits) -> int:
    """Return the number of phones of which none gets more pushes than the limits of an address allow."""
    return max(ceil(rate * min(seconds, limit.seconds) / limit.tokens) for limit in limits)


class Reply(NamedTuple):
    """The answer to the request about a message, and when it was read (Unix nanoseconds)."""

    identifier: str
    is_success: bool
    at_ns: int


class ReplyReader:
    """A reader of the replies to some senders in a store.

    During the load it only keeps the messages, because opening one costs as much as a request. A message that the store
    has lost, or never had, is not read.
    """

    def __init__(self, node: WakuNode, pubsub_topic: str, senders: Collection[Identity]) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._senders: dict[str, list[Identity]] = {}
        for sender in dict.fromkeys(senders):
            content_topic = wire.content_topic(wire.partitioned_name(sender.pub33))
            self._senders.setdefault(content_topic, []).append(sender)
        self._newest_ns = self._begin_ns = time.time_ns() - CLOCK_SKEW_NS
        self._noted: dict[bytes, tuple[Any, int]] = {}  # raw message and when it was read, by hash
        self._opened: dict[bytes, Reply | None] = {}

    async def follow(self) -> None:
        """Read new messages until cancelled."""
        while True:
            await self.read(self._newest_ns - OVERLAP_NS)
            await asyncio.sleep(READ_SECONDS)

    def replies(self) -> list[Reply]:
        """Return every answer to a request, opened. Each message is opened once."""
        for message_hash in self._noted.keys() - self._opened.keys():
            self._opened[message_hash] = self._open(*self._noted[message_hash])
        return list(filter(None, self._opened.values()))

    def has_all(self, identifiers: Collection[str]) -> bool:
        """Return whether each of these requests is answered.

        The number of messages is not enough: other senders get answers on the same topics.
        """
        if len(self._noted) < len(identifiers):
            return False
        return set(identifiers) <= {reply.identifier for reply in self.replies()}

    async def read(self, since_ns: int = 0) -> None:
        """Read all messages since a date. Those that came out of order are found by reading everything once more."""
        more: dict[str, str] = {}
        while True:
            try:
                page = await self._node.store_page(
                    pubsubTopic=self._pubsub_topic,
                    contentTopics=",".join(self._senders),
                    startTime=max(since_ns, self._begin_ns),
                    ascending="true",
                    pageSize=PAGE_SIZE,
                    includeData="true",
                    **more,
                )
            except NodeError:  # the node is busy, and the next query finds the same messages
                return
            now_ns = time.time_ns()
            for entry in page.entries:
                self._noted.setdefault(entry.message_hash, (entry.message, now_ns))
                if (dated_ns := entry.message.get("timestamp", 0)) <= now_ns:
                    self._newest_ns = max(self._newest_ns, dated_ns)
            if not page.cursor:
                return
            more = {"cursor": page.cursor}

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
        return Reply(body.message_id.hex(), is_success, at_ns)


def evaluate(
    requests: Sequence[LoadRequest], sent: Sent, replies: Sequence[Reply], pushes: Sequence[Arrival] | None
) -> Result:
    """Return the result of a load through Waku."""
    due_ns = {each.identifier: each.due_ns for each in requests}
    not_sent = {each.identifier for each, _ in sent.refused}
    to_answer = {identifier: at_ns for identifier, at_ns in due_ns.items() if identifier not in not_sent}
    failed = {reply.identifier for reply in replies if not reply.is_success} & due_ns.keys()
    answered = ({reply.identifier for reply in replies} & to_answer.keys()) - failed
    # By ciphertext, or of a wake-up by recipient.
    newest_ns = dict(sorted(pushes or (), key=lambda arrival: arrival[1]))
    merged = {
        each.identifier
        for each in requests
        if each.identifier in answered - newest_ns.keys() and newest_ns.get(each.recipient, -1) >= each.due_ns
    }
    excused = merged | ((failed | not_sent) - newest_ns.keys())
    to_push = {identifier: at_ns for identifier, at_ns in due_ns.items() if identifier not in excused}
    return Result(
        requests=len(requests),
        pushes=None if pushes is None else arrivals(to_push, pushes),
        replies=arrivals(to_answer, [(reply.identifier, reply.at_ns) for reply in replies]),
        merged=len(merged),
        refused=dict(Counter(code for _, code in sent.refused) + Counter({"no success": len(failed - not_sent)})),
        generator={"lag_ms": distribution(sent.lags_ms), "publish_ms": distribution(sent.publish_ms)},
    )
