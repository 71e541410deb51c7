"""Steady pushes of a user's server, with a record of the pushes and of the answers to them."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from xml.etree.ElementTree import Element

from tests.interop.xmpp.service import Neighbour, ciphertext, iv
from tests.rig.peers import ask
from xmpp_bridge.client import Failed, Grade, Notification, Refused, Route, Stored
from xmpp_bridge.messages import Dialect

# Seconds after which a request without an answer is sent again.
ANSWER_SECONDS = 5.0
OVER_SECONDS = 240.0


@dataclass(slots=True)
class Sent:
    """Pushes of a run.

    ``at``, ``ids`` and ``requests`` are by ciphertext: the time, the stanza id, and the stanza id of pushes that get an
    answer. The others are by stanza id: ``unanswered`` requests, ``stored`` ones with the time of the acknowledgement,
    and ``refused_ids``, also of those that were stored later.
    """

    at: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, tuple[float, Element]] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)
    refused_ids: set[str] = field(default_factory=set)
    repeated: int = 0
    refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


async def push(
    server: Neighbour, routes: Sequence[Route], sent: Sent, *, rate_per_second: int, is_enough: Callable[[int], bool]
) -> None:
    """Send at a steady rate until ``is_enough``, and then wait until every request has its acknowledgement."""
    noting = asyncio.create_task(note(server, sent))
    started = time.monotonic()
    for number, route in zip(count(1), cycle(routes), strict=False):
        notification = Notification(Grade.NORMAL, ciphertext(), "" if route.dialect is Dialect.MOD_PUSH2 else iv())
        for stanza in server.notify(route, notification):
            sent.at[notification.ciphertext] = time.monotonic()
            sent.ids[notification.ciphertext] = stanza.get("id", "")
            if route.dialect is Dialect.XEP0357:
                sent.requests[notification.ciphertext] = stanza.get("id", "")
                sent.unanswered[stanza.get("id", "")] = (time.monotonic(), stanza)
        await asyncio.sleep(max(0.0, started + number / rate_per_second - time.monotonic()))
        repeat(server, sent)
        if is_enough(number):
            break
    deadline = time.monotonic() + OVER_SECONDS
    while sent.unanswered and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        repeat(server, sent)
    noting.cancel()


def repeat(server: Neighbour, sent: Sent) -> None:
    """Send requests again, under their ids, when they have had no answer for ANSWER_SECONDS."""
    now = time.monotonic()
    for identifier, (at, stanza) in list(sent.unanswered.items()):
        if now - at > ANSWER_SECONDS:
            sent.unanswered[identifier] = (now, stanza)
            sent.repeated += 1
            server.component.send(stanza)


async def note(server: Neighbour, sent: Sent) -> None:
    while True:
        match await server.next_event(timeout_seconds=None):
            case Stored(identifier):
                sent.stored[identifier] = time.monotonic()
                sent.unanswered.pop(identifier, None)
            case Failed(identifier, Refused() as refusal):
                sent.refused_ids.add(identifier)
                sent.refused[str(refusal)] += 1


def pushed(fakes_url: str) -> dict[str, list[str]]:
    """Return the collapse ids under which Google accepted each ciphertext."""
    accepted: defaultdict[str, list[str]] = defaultdict(list)
    for each in ask(fakes_url, "GET", "/dev/pushes?limit=1000000").body["pushes"]:
        if not each["error"] and "e" in each["data"]:
            accepted[each["data"]["e"]].append(each["collapse_id"])
    return accepted
