"""Settling of requests: one is answered when no report of it is missing any more, or else at its deadline.

The reports stand in the row of the request, one byte for each position (`notifications.reports`). The first result of a
notification sets its byte, and so does a silence, so whatever is recorded twice counts once. What ends without an
attempt leaves its byte missing until the deadline.

Rows of requests are locked in the order of their ids, before routes and notifications.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import LiteralString

from kit.batches.batch import Batch
from kit.db.base import array_value, fetch, fetch_each, write_rows
from kit.db.clock import day_of, first_day
from kit.telemetry import observe
from notifications.delivery.recording import Change
from notifications.messages import Answer
from notifications.metrics import ANSWER_SECONDS
from notifications.models import REQUEST, Notification
from notifications.policy import report_error
from notifications.reports import IS_OVERDUE, MISSING, SILENT, SUCCESS, TRIED, Request, as_answered
from registrations.models import Route

OVERDUE: LiteralString = f"""
    SELECT min(reply_due_at) FROM notifications_openrequest WHERE reply_due_at >= %(nothing_before)s AND {IS_OVERDUE}
"""
NOT_REGISTERED = 1 + report_error(is_token_dead=True)


_COLUMNS: LiteralString = """
    id, bridge, source_key, coalesce(reply_address, ''), message_id, received_at, reply_due_at, reports, names
"""
_LOCK: LiteralString = f"""
    SELECT {_COLUMNS} FROM notifications_openrequest WHERE id = ANY (%(ids)b::bigint[])
    ORDER BY id FOR NO KEY UPDATE
"""
_TAKE_DUE: LiteralString = f"""
    SELECT {_COLUMNS} FROM notifications_openrequest
    WHERE reply_due_at >= %(nothing_before)s AND reply_due_at <= %(now)s
    ORDER BY reply_due_at, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""


def lock(request_ids: Iterable[int]) -> list[Request]:
    """Lock those of these requests that wait for their answer, and return them."""
    return [Request(*row) for row in fetch(_LOCK, {"ids": sorted(set(request_ids))})]


def take_due(batch: Batch) -> list[Request]:
    """Lock the requests that are to be answered now, and return them. Locked ones are skipped."""
    batch.taken = [Request(*row) for row in fetch(_TAKE_DUE, batch.values)]
    return batch.taken


def note(locked: Iterable[Request], changes: Iterable[Change], silences: Iterable[Request]) -> list[Request]:
    """Return locked requests with the reports that follow from results, and from silences that ended.

    After a fail-over another request may have got the id of one that is lost. It was received at another time.
    """
    requests = {(request.id, request.received_at): request for request in locked}
    for silence in silences:
        if request := requests.get((silence.id, silence.received_at)):
            reports = request.reports.replace(bytes([SILENT]), bytes([SUCCESS]))
            requests[request.id, request.received_at] = request._replace(reports=reports)
    for change in changes:
        if request := requests.get((change.claim.request_id, change.claim.created_at)):
            requests[request.id, request.received_at] = _with_report(request, change)
    return list(requests.values())


def _with_report(request: Request, change: Change) -> Request:
    """Return a request with the report that follows from a result, unless an earlier one has ended the notification."""
    place = change.claim.position
    if request.reports[place] not in {MISSING, TRIED}:
        return request
    code = 1 + report_error(is_token_dead=change.is_token_dead) if change.is_end else TRIED
    return request._replace(reports=request.reports[:place] + bytes([code]) + request.reports[place + 1 :])


_REPORTS: LiteralString = array_value("%(ids)b::bigint[]", "n.id", "reports", "bytea")
_KEEP: LiteralString = f"""
    UPDATE notifications_openrequest AS n SET reports = {_REPORTS} WHERE n.id = ANY (%(ids)b::bigint[])
"""


def keep(requests: Iterable[Request]) -> None:
    """Write the reports of locked requests that cannot be answered yet."""
    write_rows(_KEEP, ("ids", "reports"), [(request.id, request.reports) for request in requests])


# A notification that waits for a disabled address is closed as dead when it is due.
_FIND_OPEN: LiteralString = f"""
    SELECT request_id, position, state <> '{Notification.State.IN_FLIGHT}' AND EXISTS (
        SELECT FROM registrations_route WHERE id = n.route_id AND state = '{Route.State.DISABLED}'
    )
    FROM notifications_opennotification AS n WHERE request_id = ANY (%(ids)b::bigint[])
"""
_FIND_ENDED: LiteralString = f"""
    SELECT request_id, position, state = '{Notification.State.DEAD_TOKEN}' FROM notifications_endednotification
    WHERE request_id = ANY (%(ids)b::bigint[]) AND ended_on >= %(since)s
"""
_CLOSE: LiteralString = f"""
    WITH answered AS (
        DELETE FROM notifications_openrequest AS n WHERE n.id = ANY (%(ids)b::bigint[]) RETURNING *
    )
    INSERT INTO notifications_answeredrequest ({REQUEST}, reports, answered_at, ended_on)
    SELECT {REQUEST}, {_REPORTS}, %(now)s, %(today)s FROM answered AS n
"""


def answer(locked: Sequence[Request], *, now: datetime) -> list[Answer]:
    """Close locked requests and return their answers, in the order of the requests."""
    dead = _find_dead([each for each in locked if {MISSING, TRIED} & {*each.reports}])
    requests = [request._replace(reports=_reports(request, dead.get(request.id, ()))) for request in locked]
    rows = [(request.id, request.reports) for request in requests]
    write_rows(_CLOSE, ("ids", "reports"), rows, now=now, today=day_of(now))
    observe(ANSWER_SECONDS, ((now - request.received_at).total_seconds() for request in requests))
    return [request.answer() for request in requests]


def _find_dead(requests: Collection[Request]) -> Mapping[int, set[int]]:
    """Return by request the positions whose tokens are dead, as far as the requests may not know it."""
    if not requests:
        return {}
    dead: dict[int, set[int]] = {request.id: set() for request in requests}
    keys = {"ids": list(dead), "since": first_day(request.received_at for request in requests)}
    for request_id, position, is_dead in chain.from_iterable(fetch_each((_FIND_OPEN, keys), (_FIND_ENDED, keys))):
        dead[request_id] |= {position} if is_dead else set()
    return dead


def _reports(request: Request, dead: Collection[int]) -> bytes:
    return bytes(
        NOT_REGISTERED if position in dead else code for position, code in enumerate(as_answered(request.reports))
    )
