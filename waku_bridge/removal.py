"""Removal of old rows, a day at a time, and of registrations that expired.

The hash of an envelope identifies a copy from another node or from a store. It must be kept longer than any of these
keeps the message, so the setting has a minimum.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain

from django.db import transaction

from kit.db.clock import DAY
from kit.db.partitions import WRITTEN_ONCE, DayTable, delete_in_chunks
from notifications.acceptance import acceptance
from registrations import retention as upkeep
from waku_bridge.models import DeadLetter, EnvelopeFault

HASHES = DayTable("waku_bridge_envelopehash", "sent_on", skew_days=1, storage=WRITTEN_ONCE)
ENVELOPES = DayTable("waku_bridge_endedenvelope", "ended_on", storage=WRITTEN_ONCE)
REPLIES = DayTable("waku_bridge_endedreply", "ended_on", storage=WRITTEN_ONCE)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Create the partitions of the next days, and remove the rows that are older than ``keep``.

    These are envelopes and replies that ended, faults, dead letters, and the hashes of messages that are refused for
    their age. Yield how many rows each step removed, as far as that is known.
    """
    for table in (HASHES, ENVELOPES, REPLIES):
        table.make_ahead(now=now)
    return chain(
        # They are kept a day longer, because a page may be stored a while after it was read.
        HASHES.drop_before(now - keep - DAY),
        ENVELOPES.drop_before(now - keep),
        REPLIES.drop_before(now - keep),
        delete_in_chunks(EnvelopeFault.objects.filter(last_seen_at__lt=now - keep).order_by("last_seen_at")),
        delete_in_chunks(DeadLetter.objects.filter(received_at__lt=now - keep).order_by("received_at")),
    )


def expire(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Unregister installations that were neither repeated nor reached for ``keep``, and yield the number of each step.

    A client repeats its registration whenever its device, its contacts or its chats change, and a push that arrives
    proves that the device exists. A registration without either for months is abandoned, or was made up.

    Above a limit, nothing is unregistered until an operator allows it: see `upkeep.retention.may_expire`.
    """
    if not upkeep.may_expire(now=now, keep=keep):
        return
    for step in upkeep.walk():
        with transaction.atomic():
            expired = upkeep.expire(step, now=now, keep=keep)
            acceptance.withdraw(expired, now=now)
        yield len(expired)
