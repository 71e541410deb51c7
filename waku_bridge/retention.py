"""Removing old envelopes and replies.

An envelope's hash recognises a repeat from another node or from a store. So it must be kept longer than any of these
keep the message itself, which is why the setting has a minimum.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import LiteralString

from kit.db.deleting import SET_SIZE, delete_in_chunks, remove
from waku_bridge.models import DeadLetter, EnvelopeFault, InboundEnvelope, OutboundReply

_ENVELOPES: LiteralString = f"""
    WITH old AS (
        SELECT hash FROM waku_bridge_inboundenvelope WHERE received_at < %(before)s
            AND state <> '{InboundEnvelope.State.RECEIVED}'
        ORDER BY received_at LIMIT {SET_SIZE} FOR UPDATE SKIP LOCKED
    ), removed AS (
        DELETE FROM waku_bridge_inboundenvelope AS envelope USING old WHERE envelope.hash = old.hash RETURNING 1
    )
    SELECT count(*) FROM removed
"""
_REPLIES: LiteralString = f"""
    WITH old AS (
        SELECT id FROM waku_bridge_outboundreply WHERE created_at < %(before)s
            AND state <> '{OutboundReply.State.PENDING}'
        ORDER BY created_at LIMIT {SET_SIZE} FOR UPDATE SKIP LOCKED
    ), removed AS (
        DELETE FROM waku_bridge_outboundreply AS reply USING old WHERE reply.id = old.id RETURNING 1
    )
    SELECT count(*) FROM removed
"""


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove envelopes, replies and dead letters older than ``keep``, but none that still waits for its turn.

    Yield how many rows each step removed.
    """
    return chain(
        remove(_ENVELOPES, before=now - keep),
        remove(_REPLIES, before=now - keep),
        delete_in_chunks(EnvelopeFault.objects.filter(last_seen_at__lt=now - keep).order_by("last_seen_at")),
        delete_in_chunks(DeadLetter.objects.filter(received_at__lt=now - keep).order_by("received_at")),
    )
