"""The durable progress of each store: how far it was read, and the windows of its past that are still to be read.

A walker writes its progress only after it has stored the messages, and on the same connection: after a fail-over, those
messages may be in a database that is gone. Two walkers may read one store for a moment. The only harm is that one of
them reads again what the other has finished.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from waku_bridge.models import StoreWindow
from waku_bridge.reading.intake import Session
from waku_bridge.reading.store import windows
from waku_bridge.reading.store.windows import EPOCH, Plan, Window

Reason = StoreWindow.Reason
# Limit of the windows of one store, shard and reason. One more merges all of them into one, so that a store that comes
# and goes for days does not leave thousands.
MAX_WINDOWS = 50
# Windows with messages that are certainly missing are read before those with messages that may be late.
ORDER = (Reason.OUTAGE, Reason.LATE)
LOAD = """
    SELECT mark.id, mark.watermark_at, mark.late_searched_at, clock_timestamp(),
        pending.id, pending.reason, pending.start_at, pending.end_at, pending.cursor
    FROM waku_bridge_storewatermark AS mark
    LEFT JOIN waku_bridge_storewindow AS pending ON pending.watermark_id = mark.id
    WHERE mark.node = %b AND mark.pubsub_topic = %b
"""
ADVANCE = """
    WITH ordered AS (
        SELECT reason, start_at, end_at, (
            SELECT count(*) FROM waku_bridge_storewindow AS noted
            WHERE noted.watermark_id = %(pk)b AND noted.reason = ordered.reason
        ) >= %(maximum)b AS is_merged
        FROM unnest(%(reasons)b::text[], %(starts)b::timestamptz[], %(ends)b::timestamptz[])
            AS ordered (reason, start_at, end_at)
    ), moved AS (
        UPDATE waku_bridge_storewatermark SET watermark_at = %(watermark_at)b,
            late_searched_at = coalesce(%(late_searched_at)b::timestamptz, late_searched_at)
        WHERE id = %(pk)b
        RETURNING id
    ), merged AS (
        DELETE FROM waku_bridge_storewindow AS noted USING ordered
        WHERE noted.watermark_id = %(pk)b AND noted.reason = ordered.reason AND ordered.is_merged
        RETURNING noted.reason, noted.start_at, noted.end_at
    ), new AS (
        SELECT reason, start_at, end_at FROM ordered UNION ALL SELECT reason, start_at, end_at FROM merged
    )
    INSERT INTO waku_bridge_storewindow (watermark_id, reason, start_at, end_at, cursor, created_at)
    SELECT moved.id, new.reason, min(new.start_at), max(new.end_at), '', %(now)b
    FROM moved, new GROUP BY moved.id, new.reason
"""
TURN_PAGE = "UPDATE waku_bridge_storewindow SET cursor = %b WHERE id = %b"
SHORTEN = "UPDATE waku_bridge_storewindow SET end_at = %b, cursor = '' WHERE id = %b"
FINISH = "DELETE FROM waku_bridge_storewindow WHERE id = %b"
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
    """The progress of one store, as loaded.

    ``now`` is the database's clock, which all bridges share. ``pending`` is in the order of reading. ``session`` is the
    number of the connection that loaded it.
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
        assert self.window_pk is not None  # noqa: S101 - the caller has checked it
        return Pending(self.window_pk, Reason(self.reason), Window(self.start_at, self.end_at), self.cursor)


class StoreProgress:
    """The progress of one store and shard."""

    def __init__(self, session: Session, node: str, pubsub_topic: str) -> None:
        self._session = session
        self._name = [node, pubsub_topic]

    async def load(self) -> Progress:
        """Return how far the store was read.

        A store that was never read counts as never searched for late messages, so the next pass requests that search.
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
        """Note that the fresh window was read, and in the same commit the missed window. Return the pending windows.

        Raises psycopg.OperationalError when the connection is another one than that of ``before``.
        """
        ordered = dict(_ordered(before, plan))
        values = {
            "pk": before.pk,
            "watermark_at": plan.watermark_at,
            "late_searched_at": before.now if Reason.LATE in ordered else None,
            "now": before.now,
            "maximum": MAX_WINDOWS,
            "reasons": [reason.value for reason in ordered],
            "starts": [window.start_at for window in ordered.values()],
            "ends": [window.end_at for window in ordered.values()],
        }
        await self._session.execute(ADVANCE, values, number=before.session)
        return (await self.load()).pending if ordered else before.pending

    async def turn_page(self, pending: Pending, cursor: str, *, number: int) -> Pending:
        """Note the cursor of the next page, and return the pending window with it.

        Raises psycopg.OperationalError when the connection has another number.
        """
        await self._session.execute(TURN_PAGE, [cursor, pending.pk], number=number)
        return replace(pending, cursor=cursor)

    async def finish_slice(self, pending: Pending, *, number: int) -> Pending | None:
        """Note that the newest slice was read to its end, and return the rest of the window, or None.

        Raises psycopg.OperationalError when the connection has another number.
        """
        if left := windows.rest(pending.window):
            await self._session.execute(SHORTEN, [left.end_at, pending.pk], number=number)
            return replace(pending, window=left, cursor="")
        await self._session.execute(FINISH, [pending.pk], number=number)
        return None


def _ordered(before: Progress, plan: Plan) -> Iterator[tuple[Reason, Window]]:
    """Yield the windows to read later. A search for late messages waits for the previous one, to leave no gap."""
    if plan.missed:
        yield Reason.OUTAGE, plan.missed
    if plan.late and all(pending.reason != Reason.LATE for pending in before.pending):
        yield Reason.LATE, plan.late
