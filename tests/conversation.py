"""Conversations with the server in one process: envelopes go into the inbox, decoded replies come out of the outbox.

Everything between is real: codec, use cases, batches, PostgreSQL. Only nodes and the gateway are left out.
"""

import json
import os
import time
from datetime import datetime
from pathlib import Path

from coincurve import PrivateKey
from django.utils import timezone

from tests.batches import Process
from waku_bridge.codec.envelope import decode, encode_payload
from waku_bridge.codec.errors import NotDecryptable
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.topics import message_hash
from waku_bridge.identity import server_identity
from waku_bridge.inbox import inbox, pending_keys
from waku_bridge.messages import Decoded, Envelope, MessageType, WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.query_topics import CpuBudget

PUBSUB_TOPIC = "/waku/2/rs/16/32"
CLIENT, SERVER, EPHEMERAL, SENDER, CONTACT, OUTSIDER = (
    Identity(PrivateKey(bytes([number]) * 32)) for number in (1, 2, 3, 4, 5, 7)
)
IDENTITIES = {"client": CLIENT, "stranger": OUTSIDER}  # by their names in the vectors
VECTORS = json.loads((Path(__file__).parent / "vectors" / "vectors.json").read_text())


def put(*messages: WakuMessage, now: datetime | None = None) -> list[bytes]:
    """Write messages into the inbox and return the hashes of those that are new."""
    envelopes = [Envelope(message_hash(PUBSUB_TOPIC, message), PUBSUB_TOPIC, message) for message in messages]
    return inbox.store(envelopes, source="test", now=now or timezone.now())


def say(*messages: WakuMessage, now: datetime | None = None, process: Process | None = None) -> Process:
    """Have a worker process receive and process messages. A second batch processes those that needed new keys."""
    moment, process = now or timezone.now(), process or Process()
    put(*messages, now=moment)
    process.process_batch(now=moment)
    if pending_keys.call_back(budget=CpuBudget(0, 60), limit=1000):
        process.process_batch(now=moment)
    return process


def replies_to(listener: Identity) -> list[Decoded]:
    """Return every reply in the outbox that ``listener`` can open, oldest first."""
    opened = []
    for reply in OutboundReply.objects.order_by("pk"):
        try:
            opened.append(decode(bytes(reply.payload), [listener], listener))
        except NotDecryptable:  # sealed for somebody else
            continue
    return opened


def to_server(payload: bytes, message_type: MessageType, signer: Identity) -> WakuMessage:
    """Return a message with any payload, valid or not, signed by ``signer`` and sealed for the server."""
    return encode_payload(
        payload,
        message_type,
        signer=signer,
        topic_name=f"contact-discovery-{server_identity().pub65.hex()}",
        timestamp_ns=time.time_ns(),
        random_bytes=os.urandom,
        recipient=server_identity().pub33,
    ).message
