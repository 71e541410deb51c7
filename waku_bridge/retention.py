"""Forgetting envelopes and replies.

An envelope's hash recognises a repeat from another node or from a store: it must be kept longer than any of these keep
the message itself, which is why the setting has a minimum.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain

from registrations.retention import delete_in_chunks
from waku_bridge.models import DeadLetter, InboundEnvelope, OutboundReply


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove envelopes, replies and dead letters older than ``keep``, but none that still waits for its turn."""
    envelopes = InboundEnvelope.objects.filter(received_at__lt=now - keep).exclude(state=InboundEnvelope.State.RECEIVED)
    replies = OutboundReply.objects.filter(created_at__lt=now - keep).exclude(state=OutboundReply.State.PENDING)
    return chain(
        delete_in_chunks(envelopes.order_by("received_at")),
        delete_in_chunks(replies.order_by("created_at")),
        delete_in_chunks(DeadLetter.objects.filter(received_at__lt=now - keep).order_by("received_at")),
    )
