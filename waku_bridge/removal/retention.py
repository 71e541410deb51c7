"""Removing old envelopes and replies, a day at a time.

A hash recognises a copy from another node or from a store. So it must be kept longer than any of these keep the message
itself, which is why the setting has a minimum.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain

from kit.db.deleting import delete_in_chunks
from kit.db.partitions import DAY, WRITTEN_ONCE, DayTable
from waku_bridge.models import DeadLetter, EnvelopeFault

HASHES = DayTable("waku_bridge_envelopehash", "sent_on", storage=WRITTEN_ONCE)
ENVELOPES = DayTable("waku_bridge_inboundenvelope", "ended_on", storage=WRITTEN_ONCE)
REPLIES = DayTable("waku_bridge_outboundreply", "ended_on", storage=WRITTEN_ONCE)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove envelopes and replies that ended longer ago than ``keep``, dead letters that are older, and the hashes of
    messages that are refused for their age. Make the days that come.

    Yield how many rows each step removed, as far as that is known.
    """
    for table in (HASHES, ENVELOPES, REPLIES):
        table.make_ahead(now=now)
    return chain(
        # A page may have been read a while before it is stored: a day longer.
        HASHES.drop_before(now - keep - DAY),
        ENVELOPES.drop_before(now - keep),
        REPLIES.drop_before(now - keep),
        delete_in_chunks(EnvelopeFault.objects.filter(last_seen_at__lt=now - keep).order_by("last_seen_at")),
        delete_in_chunks(DeadLetter.objects.filter(received_at__lt=now - keep).order_by("received_at")),
    )
