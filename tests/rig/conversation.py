"""Conversations with the server in one process: envelopes go into the inbox, decoded replies come out of the outbox.

Everything between is real: codec, use cases, batches, PostgreSQL. Only nodes and the gateway are left out.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coincurve import PrivateKey
from django.utils import timezone

from notifications.messages import NotificationType, PushNotification, PushRequest
from registrations.messages import RegistrationMessage, TokenType
from tests.rig.delivering import Process
from tests.rig.rows import firebase_token
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import decode, encode, encode_payload
from waku_bridge.codec.errors import NotDecryptable
from waku_bridge.codec.keys import Identity, sign_grant
from waku_bridge.codec.wire import message_hash
from waku_bridge.inbox import inbox
from waku_bridge.messages import Decoded, Envelope, MessageType, Query, WakuMessage
from waku_bridge.models import OutboundReply
from waku_bridge.query_topics import CpuBudget, server_identity

PUBSUB_TOPIC = "/waku/2/rs/16/32"
CLIENT, SERVER, EPHEMERAL, SENDER, CONTACT, OUTSIDER = (
    Identity(PrivateKey(bytes([number]) * 32)) for number in (1, 2, 3, 4, 5, 7)
)
NUMBERS = count(1_000_000)
IDENTITIES = {"client": CLIENT, "stranger": OUTSIDER}  # by their names in the vectors
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "vectors.json").read_text())
UUID = "11111111-1111-4111-8111-111111111111"
TOKEN = "c0ffee00-0000-4000-8000-000000000001"


def anybody() -> Identity:
    """Return an identity that no test had before."""
    return Identity(PrivateKey(next(NUMBERS).to_bytes(32)))


def registration(
    identity: Identity = CLIENT,
    *,
    server: Identity | None = None,
    access_token: str = TOKEN,
    now: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> WakuMessage:
    """Return the registration of an installation. By default it is an Android phone that registers with our server."""
    server = server or server_identity()
    message = RegistrationMessage(
        UUID,
        version=1,
        token_type=TokenType.FIREBASE,
        device_token=firebase_token("device-token"),
        access_token=access_token,
        grant=sign_grant(identity.private_key, server.pub33, access_token),
        enabled=True,
    )
    message = replace(message, **fields)
    return encode(message, signer=identity, recipient=server.pub33, **_now() | now).message


def query(*hashes: bytes, signer: Identity = EPHEMERAL, **now: Any) -> WakuMessage:
    """Return a query for users, on the topic of the first."""
    hashes = hashes or (CLIENT.key_hash,)
    return encode(Query(hashes), signer=signer, topic_key=_topic_key(hashes[0]), **_now() | now).message


@cache
def _topic_key(public_key_hash: bytes) -> bytes:
    return wire.symmetric_key(wire.query_name(public_key_hash))


def push(identity: Identity = CLIENT, **fields: Any) -> PushNotification:
    return replace(PushNotification(identity.key_hash, UUID, TOKEN, NotificationType.MESSAGE), **fields)


def request(
    *pushes: PushNotification,
    server: Identity | None = None,
    signer: Identity = EPHEMERAL,
    message_id: bytes = b"status message",
    **now: Any,
) -> WakuMessage:
    """Return a request to notify about a message."""
    server = server or server_identity()
    return encode(PushRequest(message_id, pushes), signer=signer, recipient=server.pub33, **_now() | now).message


def _now() -> dict[str, Any]:
    return {"timestamp_ns": time.time_ns(), "random_bytes": os.urandom}


def put(*messages: WakuMessage, now: datetime | None = None) -> list[bytes]:
    """Write messages into the inbox and return the hashes of those that are new."""
    envelopes = [Envelope(message_hash(PUBSUB_TOPIC, message), PUBSUB_TOPIC, message) for message in messages]
    return inbox.store(envelopes, source="test", now=now or timezone.now())


def say(*messages: WakuMessage, now: datetime | None = None, process: Process | None = None) -> Process:
    """Have a worker process receive and process messages. A second batch processes those that needed new keys."""
    moment, process = now or timezone.now(), process or Process()
    put(*messages, now=moment)
    process.process_batch(now=moment)
    if inbox.derive_needed_keys(budget=CpuBudget(0, 60), limit=1000):
        process.process_batch(now=moment)
    return process


def replies_to(listener: Identity) -> list[Decoded]:
    """Return every reply in the outbox that ``listener`` can open, oldest first."""
    opened = []
    for reply in OutboundReply.objects.order_by("created_at", "part", "pk"):
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
        recipient=server_identity().pub33,
        **_now(),
    ).message
