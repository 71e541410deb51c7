import secrets
import time
from datetime import datetime
from typing import Any

from django.utils import timezone

from waku_bridge.messages import MessageType
from waku_bridge.models import InboundEnvelope, OutboundReply

PUBSUB_TOPIC = "/waku/2/rs/16/32"
CONTENT_TOPIC = "/waku/1/0x01020304/rfc26"


def make_envelope(*, at: datetime | None = None, **fields: Any) -> InboundEnvelope:
    """An envelope that waits to be processed."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "hash": secrets.token_bytes(32),
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": CONTENT_TOPIC,
        "timestamp_ns": time.time_ns(),
        "payload": secrets.token_bytes(200),
        "source": "http://127.0.0.1:8645",
        "received_at": at,
        "enqueued_at": at,
    }
    return InboundEnvelope.objects.create(**defaults | fields)


def make_reply(*, envelope_hash: bytes = b"", at: datetime | None = None, **fields: Any) -> OutboundReply:
    """A reply that waits to be published."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "message_type": MessageType.RESPONSE,
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": CONTENT_TOPIC,
        "payload": secrets.token_bytes(200),
        "timestamp_ns": time.time_ns(),
        "next_attempt_at": at,
        "enqueued_at": at,
        "created_at": at,
    }
    return OutboundReply.objects.create(envelope_hash=envelope_hash or secrets.token_bytes(32), **defaults | fields)
