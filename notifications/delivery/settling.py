"""Settling of requests: which can be answered, and with which reports.

The process that accepted a request keeps it in memory until it is answered. When all its notifications end in time,
nothing is read again. In any other case (a result is missing, or another worker accepted the request) it is settled
from what is stored.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from heapq import heappop, heappush
from itertools import chain
from typing import LiteralString, NamedTuple

from kit.batches.batch import LONG_AGO
from kit.db.base import Written
from kit.db.partitions import day_of, first_day
from kit.db.statements import array_value, fetch, fetch_each, write_rows
from kit.metrics import observe
from notifications.delivery.recording import Change
from notifications.delivery.silence import Silence
from notifications.messages import Answer, QueueKey, Report
from notifications.metrics import ANSWER_SECONDS
from notifications.models import REQUEST, Notification
from notifications.rules.deadlines import IS_OVERDUE
from notifications.rules.policy import report_error
from notifications.rules.reports import REPORTS, report_of, unpack_reports
from notifications.rules.transitions import DUE
from registrations.models import Route

State = Notification.State
_IS_OVERDUE: LiteralString = f"reply_due_at >= %(nothing_before)s AND {IS_OVERDUE}"
OVERDUE: LiteralString = f"SELECT FROM notifications_openrequest WHERE {_IS_OVERDUE}"
OLDEST_REPLY_DUE: LiteralString = """
    SELECT min(reply_due_at) FROM notifications_openrequest WHERE reply_due_at >= %(nothing_before)s
"""


@dataclass(slots=True)
class WaitingRequest:
    """A request that this process accepted and that is not answered yet.

    ``reports`` has one entry for each notification that is reported, in order. An entry is None while the report is not
    known. ``positions`` has by notification id the index in ``reports``, the key hash and the installation id.
    ``silent_queues`` has the queue of each notification that succeeds without an attempt, while the `silence` about it
    lasts. It is None when the silence lasts until the answer is due. ``full_queue_ids`` are those of these queues that
    had no capacity.
    """

    request_id: int
    bridge: str
    source_key: bytes
    reply_address: bytes
    message_id: bytes
    received_at: datetime
    due_at: datetime
    reports: list[Report | None]
    positions: dict[int, tuple[int, bytes, str]]
    silent_queues: Sequence[QueueKey] | None = ()
    full_queue_ids: frozenset[int] = frozenset()
    is_open: bool = False  # some notification was attempted and has not ended

    def note(self, recorded: Change | Silence) -> bool:
        """Note one result, or the end of the silence, and return whether nothing keeps the answer any more."""
        if recorded.source_key not in {b"", self.source_key}:  # another request with this one's id (fail-over)
            return False
        if isinstance(recorded, Silence):
            self.silent_queues = ()
            return not self.positions
        asked = self.positions.pop(recorded.claim.notification_id, None)
        if asked is not None:
            position, public_key_hash, installation_id = asked
            self.is_open |= not recorded.is_end
            error = report_error(is_token_dead=recorded.is_token_dead)
            self.reports[position] = Report(public_key_hash, installation_id, success=not error, error=error)
        return asked is not None and not self.positions and self.silent_queues is not None and not self.silent_queues

    def answer(self) -> Answer:
        """Return the answer, once all reports are known."""
        reports = tuple(report for report in self.reports if report is not None)
        return Answer(self.bridge, self.source_key, self.reply_address, self.message_id, reports)


@dataclass(slots=True)
class WaitingRequests:
    """The requests that this process accepted and has not answered, and when each is due at the latest."""

    _by_id: dict[int, WaitingRequest] = field(default_factory=dict)
    _due: list[tuple[datetime, int]] = field(default_factory=list)
    _ready: dict[int, WaitingRequest] = field(default_factory=dict)

    def add(self, requests: Iterable[WaitingRequest]) -> None:
        """Add requests that were just stored."""
        for request in requests:
            self._by_id[request.request_id] = request
            heappush(self._due, (request.due_at, request.request_id))

    def has(self, request: WaitingRequest) -> bool:
        """Return whether a request is not answered yet."""
        return self._by_id.get(request.request_id) is request

    def note(self, results: Iterable[Change | Silence]) -> None:
        """Note results that were just stored, and silences that ended, in the order of their arrival."""
        for recorded in results:
            request = self._by_id.get(recorded.request_id)
            if request and request.note(recorded):
                self._ready[request.request_id] = request

    def mark_ambiguous(self, request_ids: Iterable[int]) -> None:
        """Mark requests to be settled from what is stored, because their copy in memory may be wrong."""
        for request_id in request_ids:
            if request_id in self._by_id:
                self._by_id[request_id].is_open = True

    def next_due_at(self) -> datetime | None:
        """Return when the next answer is due at the latest, or None when no request waits."""
        while self._due and self._due[0][1] not in self._by_id:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def has_ready(self) -> bool:
        """Return whether some request can be answered at once."""
        return bool(self._ready)

    def ready(self, limit: int) -> list[WaitingRequest]:
        """Return requests all of whose notifications were attempted."""
        return [request for request, _ in zip(self._ready.values(), range(limit), strict=False)]

    def overdue(self, limit: int, *, now: datetime) -> list[WaitingRequest]:
        """Return the requests whose answer is due, though some notification was not attempted."""
        first_at = self.next_due_at()
        if first_at is None or first_at > now:
            return []
        due = (request for at, pk in sorted(self._due) if at <= now and (request := self._by_id.get(pk)))
        return [request for request, _ in zip(due, range(limit), strict=False) if request.request_id not in self._ready]

    def forget(self, request_ids: Iterable[int]) -> None:
        """Forget requests that were answered, by this or by another process."""
        for request_id in request_ids:
            self._by_id.pop(request_id, None)
            self._ready.pop(request_id, None)


# By id and source key: see `recording` on ids after a fail-over.
_ANSWER: LiteralString = f"""
    WITH answered AS (
        DELETE FROM notifications_openrequest AS request WHERE request.id = ANY (%(ids)b::bigint[])
            AND request.source_key = {array_value("%(ids)b::bigint[]", "request.id", "keys", "bytea")}
        RETURNING *
    )
    INSERT INTO notifications_answeredrequest ({REQUEST}, answered_at, ended_on)
    SELECT {REQUEST}, %(now)s, %(today)s FROM answered RETURNING id
"""


def answer_ended(requests: Sequence[WaitingRequest], *, now: datetime) -> list[Answer]:
    """Answer requests whose notifications have all ended. Their reports were fixed with the ends."""
    written = _close([(request.request_id, request.source_key) for request in requests], now=now)
    answered = {request_id for each in written for (request_id,) in each.rows()}
    ours = [request for request in requests if request.request_id in answered]
    _measure(ours, now=now)
    return [request.answer() for request in ours]


def _close(requests: Iterable[tuple[int, bytes]], *, now: datetime) -> list[Written]:
    """Move requests, given by id and source key, to those that are answered. The rows are the ids of open ones."""
    return write_rows(_ANSWER, ("ids", "keys"), requests, now=now, today=day_of(now))


def _measure(answered: Sequence["WaitingRequest | Stored"], *, now: datetime) -> None:
    waited = ((now - request.received_at).total_seconds() for request in answered)
    observe(ANSWER_SECONDS, waited, of=(request.source_key for request in answered))


class Stored(NamedTuple):
    """A stored request that waits."""

    id: int
    bridge: str
    source_key: bytes
    reply_address: bytes | None
    message_id: bytes
    received_at: datetime
    reply_due_at: datetime
    decided: bytes | None
    decided_names: bytes | None


class StoredNotification(NamedTuple):
    """A notification of a stored request that waits, as far as it matters to the sender."""

    id: int
    request_id: int
    position: int
    public_key_hash: bytes
    installation_id: str
    state: str
    attempt_count: int
    report: str | None
    is_route_disabled: bool


_LOCK_WAITING: LiteralString = """
    SELECT id, bridge, source_key, reply_address, message_id, received_at, reply_due_at, decided, decided_names
    FROM notifications_openrequest WHERE id = ANY (%(ids)b::bigint[])
    ORDER BY id FOR UPDATE SKIP LOCKED
"""
_SELECT: LiteralString = f"""
    SELECT id, request_id, position, public_key_hash, installation_id, state, attempt_count, report,
           EXISTS (SELECT FROM registrations_route WHERE id = n.route_id AND state = '{Route.State.DISABLED}')
"""
_LOCK_OPEN: LiteralString = f"""
    {_SELECT} FROM notifications_opennotification AS n WHERE request_id = ANY (%(ids)b::bigint[])
    ORDER BY request_id, position FOR NO KEY UPDATE OF n
"""
_FIND_ENDED: LiteralString = f"""
    {_SELECT} FROM notifications_endednotification AS n
    WHERE request_id = ANY (%(ids)b::bigint[]) AND ended_on >= %(since)s
"""
_REPORT: LiteralString = array_value("%(ids)b::bigint[]", "n.id", "reports", "text")
_FIX_OPEN = f"""
    UPDATE notifications_opennotification AS n SET report = {_REPORT} WHERE n.id = ANY (%(ids)b::bigint[])
"""
_FIX_ENDED = f"""
    UPDATE notifications_endednotification AS n SET report = {_REPORT}
    WHERE n.id = ANY (%(ids)b::bigint[]) AND ended_on >= %(since)s
"""


def settle(request_ids: Iterable[int], *, now: datetime) -> list[Answer]:
    """Answer those of these requests that can be answered, from what is stored. The caller opens the transaction.

    Each is answered once, by the worker that locks it.
    """
    waiting = [Stored._make(row) for row in fetch(_LOCK_WAITING, {"ids": list(request_ids)})]
    if not waiting:
        return []
    by_request: defaultdict[int, list[StoredNotification]] = defaultdict(list)
    since = first_day(request.received_at for request in waiting)
    keys = {"ids": [request.id for request in waiting], "since": since}
    # In this order: what ended while its lock was waited for is found by the second statement.
    for row in chain.from_iterable(fetch_each((_LOCK_OPEN, keys), (_FIND_ENDED, keys))):
        notification = StoredNotification._make(row)
        by_request[notification.request_id].append(notification)
    settled = [
        request
        for request in waiting
        if request.reply_due_at <= now or not any(map(_is_untried, by_request[request.id]))
    ]
    reports = _fix_reports([n for request in settled for n in by_request[request.id]], since)
    _close([(request.id, request.source_key) for request in settled], now=now)
    _measure(settled, now=now)
    return [_answer(request, {n.position: reports[n.id] for n in by_request[request.id]}) for request in settled]


def _is_untried(notification: StoredNotification) -> bool:
    """Return whether no attempt has a result: the sender waits until the reply deadline."""
    is_first = notification.state == State.IN_FLIGHT and notification.attempt_count == 1
    return notification.report is None and (is_first or notification.state == State.PENDING)


def _fix_reports(notifications: Sequence[StoredNotification], since: date) -> dict[int, Report]:
    """Fix the reports that are not fixed yet, and return all of them."""
    fixed = {n.id: n.report or _report(n) for n in notifications}
    for statement, is_over in ((_FIX_OPEN, False), (_FIX_ENDED, True)):
        new = [n for n in notifications if n.report is None and State(n.state).is_terminal is is_over]
        write_rows(statement, ("ids", "reports"), [(n.id, fixed[n.id]) for n in new], since=since)
    return {n.id: report_of(n.public_key_hash, n.installation_id, fixed[n.id]) for n in notifications}


def _report(notification: StoredNotification) -> str:
    # A notification that waits for a disabled address is closed as dead when it is due.
    is_about_to_be = notification.is_route_disabled and notification.state in DUE
    is_token_dead = notification.state == State.DEAD_TOKEN or is_about_to_be
    return str(REPORTS[report_error(is_token_dead=is_token_dead)])


def _answer(request: Stored, reports: dict[int, Report]) -> Answer:
    by_position = unpack_reports(request.decided, request.decided_names) | reports
    in_order = tuple(by_position[position] for position in sorted(by_position))
    return Answer(request.bridge, request.source_key, request.reply_address or b"", request.message_id, in_order)


_OVERDUE: LiteralString = f"""
    SELECT id, source_key FROM notifications_openrequest WHERE {_IS_OVERDUE} ORDER BY reply_due_at LIMIT %(limit)s
"""


def overdue_requests(*, now: datetime, limit: int, nothing_before: datetime = LONG_AGO) -> dict[int, bytes]:
    """Return the requests, by id with their source keys, that their worker did not answer in time."""
    return dict(fetch(_OVERDUE, {"now": now, "limit": limit, "nothing_before": nothing_before}))


def give_up_first(*, now: datetime, nothing_before: datetime = LONG_AGO) -> None:
    """Close the overdue request that cannot be answered, without an answer."""
    _close(overdue_requests(limit=1, now=now, nothing_before=nothing_before).items(), now=now)
