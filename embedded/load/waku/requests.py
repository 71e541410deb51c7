"""The load requests. They are sealed and dated before the first is sent, so that sending is cheap."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from kit.buckets.bucket import BucketLimits
from waku_bridge.client.core import new_identity
from waku_bridge.client.events import Destination
from waku_bridge.client.notification.asking import ask_to_push, one_to_one
from waku_bridge.client.registration.registering import RegisteringClient
from waku_bridge.codec.keys import Identity
from waku_bridge.messages import WakuMessage

# Fewer senders than the ten topics that one store query may name.
SENDERS = 8
SAMPLE = 20
# The margin is for a machine that is busy with other work.
MARGIN = 2.0
MARGIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LoadRequests:
    """The load requests. Request ``n`` is about message ``message_ids[n]``, due and dated at ``due_ns[n]`` (Unix time),
    to the user with the key hash ``recipients[n]``.

    The message id is also the payload for the phone, so that a push can be traced. ``build_seconds`` is CPU time.
    """

    message_ids: list[bytes]
    due_ns: list[int]
    messages: list[WakuMessage]
    senders: tuple[Identity, ...]
    recipients: list[bytes]
    build_seconds: float


def build(
    phones: Sequence[RegisteringClient], server: bytes, *, rate: float, seconds: float, on_progress: Callable[[], None]
) -> LoadRequests:
    """Build ``rate`` load requests per second, evenly spread, due from when all are built. Each notifies one phone."""
    senders = tuple(new_identity(os.urandom) for _ in range(SENDERS))
    count = max(1, round(rate * seconds))
    message_ids = [os.urandom(32) for _ in range(count)]
    destinations = [_destination(phone, server) for phone in phones]
    begin_ns = time.time_ns() + _building_ns(destinations[0], senders[0], count)
    due_ns = [begin_ns + round(number * 1e9 / rate) for number in range(count)]
    started = time.process_time()
    messages = []
    for number, (message_id, at_ns) in enumerate(zip(message_ids, due_ns, strict=True)):
        destination = destinations[number % len(destinations)]
        messages.append(_request(destination, senders[number % SENDERS], message_id, at_ns))
        on_progress()
    recipients = [destinations[number % len(destinations)].public_key_hash for number in range(count)]
    return LoadRequests(message_ids, due_ns, messages, senders, recipients, time.process_time() - started)


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


def _destination(phone: RegisteringClient, server: bytes) -> Destination:
    """Return the answer that a query would get. No query is sent, because the phone is ours."""
    return Destination(
        client=phone.identity.pub33,
        server=server,
        public_key_hash=phone.identity.key_hash,
        installation_id=phone.installation_id,
        access_token=phone.access_token,
        version=phone.version,
    )
