"""Load of many requests that are sealed beforehand, with the pushes and replies of each."""

import os
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from tests.rig.network import Network, Sender, android, iphone, new_sender
from tests.rig.server import wait_until
from waku_bridge.messages import WakuMessage

RECIPIENTS = 8
SENDERS = 4
LOAD_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """A load in which each request notifies one phone. Its message id is also the payload, so that its push is
    traceable.
    """

    message_ids: list[bytes]
    messages: list[WakuMessage]
    senders: list[Sender]
    since_ns: int


def prepare(network: Network, count: int, *, senders_count: int = SENDERS, recipients: int = RECIPIENTS) -> Load:
    """Seal requests. Publish them at once, as stores admit messages only for 20 s after their timestamp."""
    phones = [network.phone(iphone() if number % 2 else android()) for number in range(recipients)]
    senders = [new_sender() for _ in range(senders_count)]
    pairs = [(sender, network.query(sender, phone)) for phone, sender in zip(phones, cycle(senders), strict=False)]
    since_ns, message_ids = time.time_ns(), [os.urandom(32) for _ in range(count)]
    messages = [
        sender.request(destinations, sender.one_to_one(message_id), message_id, timestamp_ns=time.time_ns()).message
        for message_id, (sender, destinations) in zip(message_ids, islice(cycle(pairs), count), strict=True)
    ]
    return Load(message_ids, messages, senders, since_ns)


def wait_until_done(network: Network, *, seconds: float = LOAD_SECONDS) -> None:
    """Wait until no envelope, push or reply is open."""
    waiting = """
        SELECT (SELECT count(*) FROM waku_bridge_inboundenvelope WHERE state IN ('received', 'postponed'))
             + (SELECT count(*) FROM notifications_notification
                WHERE state IN ('pending', 'in_flight', 'retrying', 'ambiguous'))
             + (SELECT count(*) FROM notifications_notificationrequest WHERE state = 'waiting')
             + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
    """
    wait_until(lambda: network.rows(waiting) == [(0,)], seconds=seconds, what="everything is done")


def wait_until_received(network: Network, load: Load) -> None:
    """Wait until every envelope is in the inbox."""
    hashes = "SELECT count(*) FROM waku_bridge_inboundenvelope WHERE received_at >= to_timestamp(%s)"
    wait_until(
        lambda: network.rows(hashes, load.since_ns / 1e9)[0][0] >= len(load.messages),
        seconds=LOAD_SECONDS,
        what="every envelope is in the inbox",
    )


def wait_until_all_processed(network: Network, load: Load) -> None:
    """Wait until every envelope was received and nothing is open. Before the envelopes arrive nothing is
    open, either.
    """
    wait_until_received(network, load)
    wait_until_done(network)


def replies_by_message(network: Network, load: Load) -> Counter[bytes]:
    """Count the successful answers to each request."""
    replies = [reply for sender in load.senders for reply in network.replies(sender, since_ns=load.since_ns)]
    return Counter(reply.message_id for reply in replies if [report.success for report in reply.reports] == [True])


def pushes_by_message(network: Network, load: Load) -> dict[bytes, list[dict[str, Any]]]:
    """Return the pushes that Apple or Google accepted, by message id."""
    pushes: dict[bytes, list[dict[str, Any]]] = {message_id: [] for message_id in load.message_ids}
    for push in network.pushes():
        message_id = bytes.fromhex(push["data"]["encryptedMessage"].removeprefix("0x"))
        if message_id in pushes and not push["error"]:
            pushes[message_id].append(push)
    return pushes


def check_each_once(network: Network, load: Load) -> None:
    """Wait until the load is processed, and check that each push was sent once and each request answered once."""
    wait_until_all_processed(network, load)
    pushes = pushes_by_message(network, load)
    assert Counter(len(each) for each in pushes.values()) == {1: len(load.message_ids)}
    assert replies_by_message(network, load) == Counter(load.message_ids)
