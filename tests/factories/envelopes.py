import secrets
import time
from datetime import datetime
from typing import Any

from django.utils import timezone

from kit.db.partitions import day_of
from waku_bridge.messages import MessageType
from waku_bridge.models import (
    CanaryEnvelope,
    CanaryRun,
    DeadLetter,
    InboundEnvelope,
    OutboundReply,
    StoreWatermark,
    StoreWindow,
)

PUBSUB_TOPIC = "/waku/2/rs/16/32"
CONTENT_TOPIC = "/waku/1/0x01020304/rfc26"


def make_envelope(*, at: datetime | None = None, **fields: Any) -> InboundEnvelope:
    """Make an envelope that waits to be processed."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "hash": secrets.token_bytes(32),
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": CONTENT_TOPIC,
        "timestamp_ns": time.time_ns(),
        "payload": secrets.token_bytes(200),
        "source": "http://127.0.0.1:8645",
        "received_at": at,
    }
    if InboundEnvelope.State(fields.get("state", "received")).is_terminal:
        defaults |= {"ended_on": day_of(at)}
    return InboundEnvelope.objects.create(**defaults | fields)


def make_reply(*, envelope_hash: bytes = b"", at: datetime | None = None, **fields: Any) -> OutboundReply:
    """Make a reply that waits to be published."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "message_type": MessageType.RESPONSE,
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": CONTENT_TOPIC,
        "payload": secrets.token_bytes(200),
        "timestamp_ns": time.time_ns(),
        "next_attempt_at": at,
        "created_at": at,
    }
    if OutboundReply.State(fields.get("state", "pending")).is_terminal:
        defaults |= {"ended_on": day_of(at)}
    return OutboundReply.objects.create(envelope_hash=envelope_hash or secrets.token_bytes(32), **defaults | fields)


def make_canary_run(*, at: datetime | None = None, **fields: Any) -> CanaryRun:
    """Make a canary run that passed."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {"state": CanaryRun.State.PASSED, "is_dry_run": True, "finished_at": at}
    return CanaryRun.objects.create(started_at=at, **defaults | fields)


def make_canary_envelope(*, hash: bytes = b"", at: datetime | None = None) -> CanaryEnvelope:  # noqa: A002 - its column
    return CanaryEnvelope.objects.create(hash=hash or secrets.token_bytes(32), marked_at=at or timezone.now())


def make_watermark(*, at: datetime | None = None, **fields: Any) -> StoreWatermark:
    """Make the watermark of a store that was read up to ``at``. Each store has a node of its own."""
    at = at or timezone.now()
    defaults: dict[str, Any] = {
        "node": f"http://{secrets.token_hex(4)}.test:8645",
        "pubsub_topic": PUBSUB_TOPIC,
        "watermark_at": at,
        "late_searched_at": at,
    }
    return StoreWatermark.objects.create(**defaults | fields)


def make_window(watermark: StoreWatermark, *, start_at: datetime, end_at: datetime, **fields: Any) -> StoreWindow:
    """Make a window of a store that is still to be read after an outage."""
    defaults: dict[str, Any] = {"reason": StoreWindow.Reason.OUTAGE, "created_at": end_at}
    return StoreWindow.objects.create(watermark=watermark, start_at=start_at, end_at=end_at, **defaults | fields)


def make_dead_letter(*, at: datetime | None = None, **fields: Any) -> DeadLetter:
    defaults: dict[str, Any] = {
        "digest": secrets.token_bytes(32),
        "reason": "malformed",
        "pubsub_topic": PUBSUB_TOPIC,
        "raw": "{}",
        "size_bytes": 2,
        "source": "http://127.0.0.1:8645",
        "path": InboundEnvelope.Path.LIVE,
        "received_at": at or timezone.now(),
    }
    return DeadLetter.objects.create(**defaults | fields)
