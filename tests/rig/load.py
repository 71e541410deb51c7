"""Load of both networks: requests over Waku and pushes of an XMPP server, each of which can be traced to its push."""

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import Any
from xml.etree.ElementTree import Element

from embedded.load import Arrival, Result, arrivals
from notifications.messages import Grade
from tests.interop.xmpp.service import Neighbour, ciphertext, iv
from tests.rig.network import Network, Sender, android, iphone, new_sender
from tests.rig.server import wait_until
from waku_bridge.client.events import Destination
from waku_bridge.messages import WakuMessage
from xmpp_bridge.client.elements import Refused
from xmpp_bridge.client.notifying import Notification
from xmpp_bridge.client.user_server import Failed, Route, Stored
from xmpp_bridge.messages import Dialect

RECIPIENTS = 8
SENDERS = 4
LOAD_SECONDS = 120.0
# Seconds after which a user's server sends a request without an answer again.
ANSWER_SECONDS = 15.0
ANSWERED_SECONDS = 240.0
OPEN = """
    SELECT (SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed'))
         + (SELECT count(*) FROM notifications_notification
            WHERE state IN ('pending', 'in_flight', 'retrying', 'ambiguous'))
         + (SELECT count(*) FROM notifications_notificationrequest WHERE state = 'waiting')
         + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A phone that can be notified, and the sender of its notifications."""

    device_token: str
    sender: Sender
    destinations: tuple[Destination, ...]

    def request(self, message_id: bytes) -> WakuMessage:
        """Return a request whose message id is also the payload, so that its push is traceable."""
        content = self.sender.one_to_one(message_id)
        return self.sender.request(self.destinations, content, message_id, timestamp_ns=time.time_ns()).message


def targets_of(network: Network, fates: Mapping[str, int], *, senders: int = 1) -> list[Target]:
    """Register the given number of phones for each fate at Apple or Google. The senders share them."""
    in_turn = cycle([new_sender() for _ in range(senders)])
    names = [fate for fate, number in fates.items() for _ in range(number)]
    addresses = [iphone(fate) if number % 2 else android(fate) for number, fate in enumerate(names)]
    addressed = [(next(in_turn), address) for address in addresses]
    return [
        Target(address.device_token, sender, destinations)
        for (sender, address), destinations in zip(addressed, network.phones(addressed), strict=True)
    ]


def send_steadily(
    publish: Callable[[WakuMessage], object],
    targets: Sequence[Target],
    *,
    per_second: float,
    is_enough: Callable[[int], bool],
) -> list[bytes]:
    """Send to one phone after the other at a steady rate, until ``is_enough``. Return the ids of the messages."""
    message_ids: list[bytes] = []
    started = time.monotonic()
    in_turn = cycle(targets)
    while not is_enough(len(message_ids)):
        message_ids.append(os.urandom(32))
        publish(next(in_turn).request(message_ids[-1]))
        time.sleep(max(0.0, started + len(message_ids) / per_second - time.monotonic()))
    return message_ids


@dataclass(frozen=True, slots=True)
class Load:
    """A load to publish at once, in which each request notifies one phone."""

    message_ids: list[bytes]
    messages: list[WakuMessage]
    senders: set[Sender]
    since_ns: int


def prepare(network: Network, number: int, *, senders_count: int = SENDERS, recipients: int = RECIPIENTS) -> Load:
    """Seal requests. Publish them at once, as stores admit messages only for 20 s after their timestamp."""
    targets = targets_of(network, {"": recipients}, senders=senders_count)
    since_ns, message_ids = time.time_ns(), [os.urandom(32) for _ in range(number)]
    pairs = zip(islice(cycle(targets), number), message_ids, strict=True)
    messages = [target.request(message_id) for target, message_id in pairs]
    return Load(message_ids, messages, {target.sender for target in targets}, since_ns)


def wait_until_received(network: Network, load: Load) -> None:
    """Wait until every envelope is in the inbox."""
    received = "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE received_at >= to_timestamp(%s)"
    wait_until(
        lambda: network.rows(received, load.since_ns / 1e9)[0][0] >= len(load.messages),
        seconds=LOAD_SECONDS,
        what="every envelope is in the inbox",
    )


def wait_until_all_processed(network: Network, load: Load) -> None:
    """Wait until every envelope was received and nothing is open. Before the envelopes arrive nothing is
    open, either.
    """
    wait_until_received(network, load)
    wait_until(lambda: network.rows(OPEN) == [(0,)], seconds=LOAD_SECONDS, what="everything is done")


def replies_by_message(network: Network, load: Load) -> Counter[bytes]:
    """Count the successful answers to each request."""
    replies = [reply for sender in load.senders for reply in network.replies(sender, since_ns=load.since_ns)]
    return Counter(reply.message_id for reply in replies if [report.success for report in reply.reports] == [True])


def pushes_by_message(network: Network, message_ids: Iterable[bytes]) -> dict[bytes, list[Mapping[str, Any]]]:
    """Return the pushes over Waku that Apple or Google accepted, by message id."""
    pushes: dict[bytes, list[Mapping[str, Any]]] = {message_id: [] for message_id in message_ids}
    for push in network.pushes():
        message_id = bytes.fromhex(push["data"].get("encryptedMessage", "").removeprefix("0x"))
        if message_id in pushes and not push["error"]:
            pushes[message_id].append(push)
    return pushes


def check_each_once(network: Network, load: Load) -> None:
    """Wait until the load is processed, and check that each push was sent once and each request answered once."""
    wait_until_all_processed(network, load)
    pushes = pushes_by_message(network, load.message_ids)
    assert Counter(len(each) for each in pushes.values()) == {1: len(load.message_ids)}
    assert replies_by_message(network, load) == Counter(load.message_ids)


@dataclass(slots=True)
class Pushes:
    """Pushes of a user's server.

    ``at``, ``ids`` and ``requests`` are by ciphertext: the Unix time, the stanza id, and the stanza id of pushes that
    get an answer. The others are by stanza id: ``unanswered`` requests, ``stored`` ones with the time, and ``refused``,
    also of those that were stored later.
    """

    at: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, tuple[float, Element]] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    repeated: int = 0

    async def send(
        self, server: Neighbour, routes: Sequence[Route], *, per_second: float, is_enough: Callable[[int], bool]
    ) -> None:
        """Send at a steady rate until ``is_enough``, and then wait until every request has its acknowledgement."""
        noting = asyncio.create_task(self._note(server))
        started, started_at = time.monotonic(), time.time()
        for number, route in zip(count(1), cycle(routes), strict=False):
            self._push(server, route, started_at + (number - 1) / per_second)
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            self._repeat(server)
            if is_enough(number):
                break
        deadline = time.monotonic() + ANSWERED_SECONDS
        while self.unanswered and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            self._repeat(server)
        noting.cancel()

    def _push(self, server: Neighbour, route: Route, due_at: float) -> None:
        text = ciphertext()
        notification = Notification(Grade.NORMAL, text, "" if route.dialect is Dialect.MOD_PUSH2 else iv())
        for stanza in server.notify(route, notification):
            self.at[text], self.ids[text] = due_at, stanza.get("id", "")
            if route.dialect is Dialect.XEP0357:
                self.requests[text] = self.ids[text]
                self.unanswered[self.ids[text]] = (time.time(), stanza)

    def _repeat(self, server: Neighbour) -> None:
        """Send requests without an answer again, under their ids.

        The user's server gives a request up after six refusals, and has no event for an answer that comes later.
        """
        for identifier, (at, stanza) in list(self.unanswered.items()):
            if identifier in server.confirmed:
                self.stored.setdefault(identifier, time.time())
                del self.unanswered[identifier]
            elif time.time() - at > ANSWER_SECONDS:
                self.unanswered[identifier] = (time.time(), stanza)
                self.repeated += 1
                server.component.send(stanza)

    def result(self, recorded: Sequence[Arrival] | None) -> Result:
        """Return the result of a load, by the record of pushes. Latencies count from when a push was due."""
        due_ns = {text: round(at * 1e9) for text, at in self.at.items()}
        stored = [(identifier, round(at * 1e9)) for identifier, at in self.stored.items()]
        replies = arrivals({identifier: due_ns[text] for text, identifier in self.requests.items()}, stored)
        refused = dict(Counter(self.refused.values()))
        return Result(len(due_ns), arrivals(due_ns, recorded or ()), replies, 0, refused, {})

    async def _note(self, server: Neighbour) -> None:
        while True:
            match await server.next_event(timeout_seconds=None):
                case Stored(identifier):
                    self.stored.setdefault(identifier, time.time())
                    self.unanswered.pop(identifier, None)
                case Failed(identifier, Refused() as refusal):
                    self.refused[identifier] = str(refusal)


def collapse_ids(pushes: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the collapse ids under which Google accepted each ciphertext of XMPP."""
    accepted: defaultdict[str, list[str]] = defaultdict(list)
    for each in pushes:
        if not each["error"] and "e" in each["data"]:
            accepted[each["data"]["e"]].append(each["collapse_id"])
    return accepted
