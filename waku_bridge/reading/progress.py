"""Keep how far each store was read, and what is still to be read of its past. It is durable, so a restart loses
nothing.

A walker writes only after it has stored what it read. Two walkers on one store, for a moment at most, do work twice and
nothing else: what one has crossed off the other may read again.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import transaction

from waku_bridge.models import StoreWatermark, StoreWindow
from waku_bridge.reading.intake import NOTHING, Session
from waku_bridge.reading.threads import in_thread
from waku_bridge.reading.windows import EPOCH, Plan, Window

Reason = StoreWindow.Reason
# Of one store, shard and reason.
MAX_WINDOWS = 50
# Messages that are certainly missing are read before those that may be late.
ORDER = (Reason.OUTAGE, Reason.LATE)
LOAD = """
    SELECT mark.id, mark.watermark_at, mark.late_searched_at, clock_timestamp(),
        pending.id, pending.reason, pending.start_at, pending.end_at, pending.cursor
    FROM waku_bridge_storewatermark AS mark
    LEFT JOIN waku_bridge_storewindow AS pending ON pending.watermark_id = mark.id
    WHERE mark.node = %b AND mark.pubsub_topic = %b
"""
MOVE = "UPDATE waku_bridge_storewatermark SET watermark_at = %b WHERE id = %b"
CREATE = """
    INSERT INTO waku_bridge_storewatermark (node, pubsub_topic, watermark_at, late_searched_at)
    VALUES (%b, %b, clock_timestamp(), %b) ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A window that is still to be read, and the cursor of the next page in its newest slice."""

    pk: int
    reason: Reason
    window: Window
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a store was read.

    ``now`` is the database's clock, which all bridges share. ``pending`` is in the order of reading. ``session`` is the
    number of the connection that told it.
    """

    pk: int
    watermark_at: datetime
    late_searched_at: datetime
    pending: tuple[Pending, ...]
    now: datetime
    session: int = 0


class _Row(NamedTuple):
    pk: int
    watermark_at: datetime
    late_searched_at: datetime
    now: datetime
    window_pk: int | None
    reason: str
    start_at: datetime
    end_at: datetime
    cursor: str

    def pending(self) -> Pending:
        assert self.window_pk is not None  # noqa: S101 - the caller has looked
        return Pending(self.window_pk, Reason(self.reason), Window(self.start_at, self.end_at), self.cursor)


class StoreProgress:
    """The progress of one store and shard."""

    def __init__(self, session: Session, node: str, pubsub_topic: str) -> None:
        self._session = session
        self._name = [node, pubsub_topic]

    async def load(self) -> Progress:
        """Return how far the store was read.

        Everything in a store that was never read counts as late, and is searched first.
        """
        found = await self._session.execute(LOAD, self._name)
        if not found:
            await self._session.execute(CREATE, [*self._name, EPOCH])
            return await self.load()
        rows = [_Row(*row) for row in found]
        pending = [row.pending() for row in rows if row.window_pk is not None]
        pending.sort(key=lambda each: each.window.end_at, reverse=True)
        pending.sort(key=lambda each: ORDER.index(each.reason))
        first = rows[0]
        return Progress(
            first.pk, first.watermark_at, first.late_searched_at, tuple(pending), first.now, self._session.number
        )

    async def advance(self, before: Progress, plan: Plan) -> tuple[Pending, ...]:
        """Note that the fresh window was read, and in the same commit what was missed. Return what is left to do.

        Raises psycopg.OperationalError when the connection is another one than ``before``: what was read meanwhile may
        have gone into a database that is no more.
        """
        if plan.missed or _is_late_to_be_ordered(before, plan):
            await self._session.execute(NOTHING, number=before.session)
            await in_thread(_advance_and_order, before, plan)
            return (await self.load()).pending
        await self._session.execute(MOVE, [plan.watermark_at, before.pk], number=before.session)
        return before.pending


def _is_late_to_be_ordered(before: Progress, plan: Plan) -> bool:
    """Return whether to order a search for late messages. It waits for the one before, so that none is left out."""
    return plan.late is not None and all(pending.reason != Reason.LATE for pending in before.pending)


@transaction.atomic(durable=True)
def _advance_and_order(before: Progress, plan: Plan) -> None:
    row = StoreWatermark.objects.filter(pk=before.pk)
    row.update(watermark_at=plan.watermark_at)
    if plan.missed:
        _order(before.pk, Reason.OUTAGE, plan.missed, before.now)
    if plan.late and _is_late_to_be_ordered(before, plan):
        row.update(late_searched_at=before.now)
        _order(before.pk, Reason.LATE, plan.late, before.now)


def turn_page(pending: Pending, cursor: str) -> None:
    """Note the cursor of the next page."""
    StoreWindow.objects.filter(pk=pending.pk).update(cursor=cursor)


def finish_slice(pending: Pending, left: Window | None) -> None:
    """Note that the newest slice was read to its end. ``left`` is what remains of the window."""
    row = StoreWindow.objects.filter(pk=pending.pk)
    if left is None:
        row.delete()
    else:
        row.update(end_at=left.end_at, cursor="")


def _order(watermark_id: int, reason: Reason, window: Window, now: datetime) -> None:
    """Note a window. Many become one: a store that comes and goes for days must not leave thousands."""
    others = StoreWindow.objects.filter(watermark_id=watermark_id, reason=reason)
    noted = list(others.select_for_update())
    if len(noted) >= MAX_WINDOWS:
        for other in noted:
            window = window.hull(Window(other.start_at, other.end_at))
        others.delete()
    StoreWindow.objects.create(
        watermark_id=watermark_id, reason=reason, start_at=window.start_at, end_at=window.end_at, created_at=now
    )
