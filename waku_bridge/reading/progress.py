"""How far each store was read, and what is still to be read of its past: durable, so that a restart loses nothing.

A walker writes only after it has stored what it read. Two walkers on one store, for the moment that takes, do work
twice and nothing else: what one has crossed off the other may read again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from waku_bridge.models import StoreWatermark, StoreWindow
from waku_bridge.reading.windows import EPOCH, Plan, Window

Reason = StoreWindow.Reason
# What is fresh comes before what is old, and what is certainly missing before what may be late.
ORDER = (Reason.LOST_REPLY, Reason.OUTAGE, Reason.LATE)


@dataclass(frozen=True, slots=True)
class Pending:
    """A window that is still to be read, and the cursor of the next page in its newest slice."""

    pk: int
    reason: Reason
    window: Window
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """``now`` is the database's clock: the one that all bridges share."""

    pk: int
    watermark_at: datetime
    late_searched_at: datetime
    pending: tuple[Pending, ...]
    now: datetime


def load(node: str, pubsub_topic: str) -> Progress:
    """Of a store that we never read, everything is late: that is searched first, and reaches back an hour."""
    now = database_now()
    row, _ = StoreWatermark.objects.get_or_create(
        node=node, pubsub_topic=pubsub_topic, defaults={"watermark_at": now, "late_searched_at": EPOCH}
    )
    return Progress(row.pk, row.watermark_at, row.late_searched_at, pending_of(row.pk), now)


def pending_of(watermark_id: int) -> tuple[Pending, ...]:
    """In the order in which they are to be read."""
    rows = StoreWindow.objects.filter(watermark=watermark_id)
    found = [Pending(row.pk, Reason(row.reason), Window(row.start_at, row.end_at), row.cursor) for row in rows]
    found.sort(key=lambda pending: pending.window.end_at, reverse=True)
    return tuple(sorted(found, key=lambda pending: ORDER.index(pending.reason)))


@transaction.atomic(durable=True)
def advance(before: Progress, plan: Plan) -> tuple[Pending, ...]:
    """The fresh window was read. Notes what was missed in the commit that moves the watermark; returns what is left."""
    StoreWatermark.objects.filter(pk=before.pk).update(watermark_at=plan.watermark_at)
    if plan.missed:
        _order(before.pk, Reason.OUTAGE, plan.missed, before.now)
    if plan.late:
        StoreWatermark.objects.filter(pk=before.pk).update(late_searched_at=before.now)
        if not any(pending.reason == Reason.LATE for pending in before.pending):
            _order(before.pk, Reason.LATE, plan.late, before.now)
    _cross_off(pending.pk for pending in before.pending if _is_read_otherwise(pending, plan))
    return pending_of(before.pk)


def _is_read_otherwise(pending: Pending, plan: Plan) -> bool:
    """It was noted before the pass began, so the pass has seen whatever was in it."""
    windows = [plan.fresh, *([plan.missed] if plan.missed else [])]
    return pending.reason == Reason.LOST_REPLY and any(window.covers(pending.window) for window in windows)


def turn_page(pending: Pending, cursor: str) -> None:
    StoreWindow.objects.filter(pk=pending.pk).update(cursor=cursor)


def finish_slice(pending: Pending, left: Window | None) -> None:
    """The newest slice was read to its end; ``left`` is what remains of the window."""
    if left is None:
        _cross_off([pending.pk])
    else:
        StoreWindow.objects.filter(pk=pending.pk).update(end_at=left.end_at, cursor="")


def order_lost_reply(nodes: Sequence[str], pubsub_topic: str, window: Window) -> None:
    """Have the stores of these nodes searched for what a live read may have lost. A store that was never read gets its
    whole last hour read anyway.
    """
    now = database_now()
    for pk in StoreWatermark.objects.filter(node__in=nodes, pubsub_topic=pubsub_topic).values_list("pk", flat=True):
        _order(pk, Reason.LOST_REPLY, window, now)


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [(now,)] = cursor.fetchall()
    return now  # type: ignore[no-any-return]  # a cursor's rows are of any type


def _order(watermark_id: int, reason: Reason, window: Window, now: datetime) -> None:
    StoreWindow.objects.create(
        watermark_id=watermark_id, reason=reason, start_at=window.start_at, end_at=window.end_at, created_at=now
    )


def _cross_off(pks: Iterable[int]) -> None:
    StoreWindow.objects.filter(pk__in=list(pks)).delete()
