"""The inbox: every envelope on a topic of ours is written here before anything else happens to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from measuring.batches import count
from waku_bridge.messages import WakuMessage
from waku_bridge.metrics import INBOX_ENVELOPES
from waku_bridge.models import InboundEnvelope

Path = InboundEnvelope.Path


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message as received, with the hash (32 bytes) that names it."""

    hash: bytes
    pubsub_topic: str
    message: WakuMessage


def store(envelopes: Sequence[Envelope], *, source: str, now: datetime, path: Path = Path.LIVE) -> list[bytes]:
    """Write what is new and return its hashes. An envelope that another node or path told us before is left alone.

    In one order everywhere: several paths bring the same envelopes at the same time, and wait for each other's rows.
    """
    if not envelopes:
        return []
    rows = sorted(envelopes, key=lambda envelope: envelope.hash)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO waku_bridge_inboundenvelope
                (hash, pubsub_topic, content_topic, timestamp_ns, payload,
                 source, path, state, reason, received_at, enqueued_at)
            SELECT *, %s, %s, 'received', '', %s, %s
            FROM unnest(%s::bytea[], %s::text[], %s::text[], %s::bigint[], %s::bytea[])
            ON CONFLICT (hash) DO NOTHING
            RETURNING hash
            """,
            [
                source,
                path,
                now,
                now,
                [e.hash for e in rows],
                [e.pubsub_topic for e in rows],
                [e.message.content_topic for e in rows],
                [e.message.timestamp_ns for e in rows],
                [e.message.payload for e in rows],
            ],
        )
        new = {bytes(row[0]) for row in cursor.fetchall()}
    count(INBOX_ENVELOPES, {("new",): len(new), ("duplicate",): len(envelopes) - len(new)})
    return [envelope_hash for envelope_hash in dict.fromkeys(e.hash for e in envelopes) if envelope_hash in new]


def known(hashes: Sequence[bytes]) -> set[bytes]:
    """Those of these hashes that were ours and came before."""
    if not hashes:
        return set()
    return set(InboundEnvelope.objects.filter(hash__in=hashes).values_list("hash", flat=True))


def hand_out_left_behind(*, now: datetime, limit: int, patience: timedelta) -> list[bytes]:
    """Envelopes whose queue entry seems lost, for instance with a worker or with the broker: it is older than
    ``patience``. Too little of that costs an empty task, nothing else.
    """
    waiting = InboundEnvelope.objects.filter(state=InboundEnvelope.State.RECEIVED, enqueued_at__lte=now - patience)
    hashes = list(waiting.order_by("enqueued_at").values_list("hash", flat=True)[:limit])
    InboundEnvelope.objects.filter(hash__in=hashes).update(enqueued_at=now)
    return [bytes(envelope_hash) for envelope_hash in hashes]
