"""Reports to senders about their notifications, how they are stored, and all deadlines of requests and pushes.

All reports of a request stand in its row, in one byte for each position of the request: 0 where there is none at all,
or 1 and the error on the wire. Until the answer is fixed, a byte may say why the report is not known: see `MISSING`.

A notification that is decided at once has no row, because anybody may send a hundred of them at a time. The decision is
stored in its request's row, in two bytes for each position of the request. The first byte is the verdict, or 0 where
there is a row or no report at all. The second is the type, or 0 where that does not fit. After all verdicts follow
their reasons, the wish or the limit, again in two bytes for each position: 0, and the reason.

The key hashes and the installations are those of the request itself. A repeat brings them along. Until the answer is
fixed they are stored, for whichever worker answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import LiteralString, NamedTuple

from django.conf import settings

from notifications.messages import Answer, PushLimit, PushNotification, QueueKey, Report, ReportError
from notifications.models import Notification
from notifications.policy import Verdict, Wish

# Deadlines ------------------------------------------------------------------------------------------------------------

# Another worker answers a request only when the accepting worker is late by this much.
GRACE_SECONDS = 0.5
GRACE = timedelta(seconds=GRACE_SECONDS)
IS_OVERDUE: LiteralString = f"reply_due_at <= %(now)s - interval '{GRACE_SECONDS} seconds'"


def reply_due_at(received_at: datetime) -> datetime:
    """Return when a request is answered at the latest, also with results missing.

    Requests that arrive within an eighth of the deadline have the same time, so one batch answers them together. During
    an outage each of them waits until then.
    """
    seconds = settings.REPLY_DEADLINE_SECONDS
    together = seconds / 8
    latest = received_at.timestamp() + seconds
    return datetime.fromtimestamp(latest // together * together, UTC)


def lease_until(claimed_at: datetime) -> datetime:
    """Return until when only the process that claimed a push sends it."""
    return claimed_at + timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)


def expires_at(accepted_at: datetime) -> datetime:
    """Return when a push of the messenger is given up."""
    return accepted_at + timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS)


def stands_for_others_until(now: datetime) -> datetime:
    """Return the earliest expiry of a waiting wake-up that may stand for later ones."""
    return now + timedelta(seconds=settings.NOTIFICATION_TTL_SECONDS / 2)


# Reports --------------------------------------------------------------------------------------------------------------

# The only mapping between stored reports and wire values.
REPORT_ERRORS = {
    Notification.Reports.SUCCESS: ReportError.NONE,
    Notification.Reports.WRONG_TOKEN: ReportError.WRONG_TOKEN,
    Notification.Reports.NOT_REGISTERED: ReportError.NOT_REGISTERED,
    Notification.Reports.INTERNAL_ERROR: ReportError.INTERNAL_ERROR,
}

REPORTS = {error: report for report, error in REPORT_ERRORS.items()}

# Bytes of reports that are not known yet. Unless the token is dead by then, they are answered as successes.
MISSING = 0x80  # it waits for the first attempt
SILENT = 0x81  # it waits as long as a first attempt would take: see `delivery.silence`
TRIED = 0x82  # an attempt failed for now, so the request waits no longer for this one
SUCCESS = 1 + ReportError.NONE

# The byte of each verdict in the database. A number is never reused.
CODES = {
    Verdict.SUPPRESSED: 1,
    Verdict.DUPLICATE: 2,
    Verdict.WRONG_TOKEN: 3,
    Verdict.NOT_REGISTERED: 4,
    Verdict.OVERLOADED: 5,
    Verdict.COALESCED: 6,
}
# The byte of each wish that suppressed a notification, and of each limit that merged or refused one.
REASON_CODES: dict[Wish | PushLimit, int] = {
    Wish.NOTIFICATIONS_OFF: 8,
    Wish.AUTHOR_BLOCKED: 9,
    Wish.CHAT_BLOCKED: 10,
    Wish.CHAT_MUTED: 11,
    Wish.MENTIONS_BLOCKED: 12,
    Wish.MENTION_NOT_ALLOWED: 13,
    PushLimit.ADDRESS: 16,
    PushLimit.ADDRESS_LONG: 17,
    PushLimit.APART: 18,
    PushLimit.APART_LONG: 19,
    PushLimit.SENDER: 20,
    PushLimit.SENDER_LONG: 21,
    PushLimit.SERVER: 22,
    PushLimit.SERVER_LONG: 23,
    PushLimit.WAITING: 24,
    PushLimit.QUEUE: 25,
}
_REASONS = {code: reason for reason, code in REASON_CODES.items()}
VERDICTS = {code: verdict for verdict, code in CODES.items()}
BYTES_EACH = 2
Errors = dict[int, ReportError]  # by the position in the request
LENGTH_BYTES = 4


class Request(NamedTuple):
    """A sender's request, from its acceptance to its answer. ``reports`` are those of all its notifications, packed.

    Delivery reads it without what follows after ``names``. While the process that accepted it is silent about some of
    its notifications, as if they were pushed, ``silent_queues`` has the queue of each. ``full_queue_ids`` are those of
    these queues that had no capacity.
    """

    id: int
    bridge: str
    source_key: bytes
    reply_address: bytes
    message_id: bytes
    received_at: datetime
    reply_due_at: datetime
    reports: bytes
    names: bytes = b""
    request_key: bytes = b""
    sender_digest: bytes = b""
    decided: bytes | None = None
    silent_queues: tuple[QueueKey, ...] = ()
    full_queue_ids: frozenset[int] = frozenset()

    @property
    def is_complete(self) -> bool:
        """Return whether it is to be answered, because none of its reports is awaited any more."""
        return MISSING not in self.reports and SILENT not in self.reports

    def answer(self, *, is_traceable: bool = True) -> Answer:
        """Return the answer. A report that is not known counts as success."""
        reports = unpack_reports(self.reports, self.names)
        return Answer(self.bridge, self.source_key, self.reply_address, self.message_id, reports, is_traceable)


class Decided(NamedTuple):
    """The decision made at once about one position of a request."""

    position: int
    verdict: Verdict
    type: int
    why: Wish | PushLimit | None = None

    @property
    def error(self) -> ReportError:
        return self.verdict.error or ReportError.NONE


def pack(decided: Iterable[Decided]) -> bytes | None:
    """Return the stored form of these decisions, or None when there are none."""
    verdicts, reasons = bytearray(), bytearray()
    for one in decided:
        _put(verdicts, one.position, CODES[one.verdict], one.type if 0 < one.type < 256 else 0)
        if one.why:
            _put(reasons, one.position, 0, REASON_CODES[one.why])
    return bytes(verdicts + reasons) or None


def _put(packed: bytearray, position: int, *pair: int) -> None:
    """Write the two bytes of a position, after those of earlier positions."""
    packed.extend(bytes(BYTES_EACH * (position + 1) - len(packed)))
    packed[-BYTES_EACH:] = pair


def unpack(packed: bytes | None) -> list[Decided]:
    """Return the decisions made at once, in the request's order."""
    firsts, seconds = (packed or b"")[::BYTES_EACH], (packed or b"")[1::BYTES_EACH]
    codes = firsts.rstrip(b"\0")  # the last position has a verdict, and what follows begins with 0
    types, reasons = seconds[: len(codes)], seconds[len(codes) :]
    return [
        Decided(position, VERDICTS[code], type_, _REASONS.get(reason))
        for position, (code, type_, reason) in enumerate(zip_longest(codes, types, reasons, fillvalue=0))
        if code
    ]


def pack_names(notifications: Iterable[PushNotification]) -> bytes:
    """Return the key hashes and installation ids of these notifications, packed."""
    parts = (part for n in notifications for part in (n.public_key_hash, n.installation_id.encode()))
    return b"".join(len(part).to_bytes(LENGTH_BYTES) + part for part in parts)


def pack_reports(reports: Mapping[int, int]) -> bytes:
    """Return the bytes of these reports, which are given by their position in the request."""
    return bytes(reports.get(position, 0) for position in range(max(reports, default=-1) + 1))


def unpack_reports(packed: bytes, names: bytes) -> tuple[Report, ...]:
    """Return the reports of a request in its order. Those that are still missing count as success."""
    parts = list(_parts(names))
    named = zip(errors_of(as_answered(packed)).values(), parts[::2], parts[1::2], strict=True)
    return tuple(_report(key_hash, installation.decode(), error) for error, key_hash, installation in named)


def as_answered(packed: bytes) -> bytes:
    """Return the bytes of reports as they are answered: those that are not known are successes."""
    return bytes(SUCCESS if code >= MISSING else code for code in packed)


def _parts(packed: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(packed):
        start = offset + LENGTH_BYTES
        offset = start + int.from_bytes(packed[offset:start])
        yield packed[start:offset]


def _report(public_key_hash: bytes, installation_id: str, error: ReportError) -> Report:
    return Report(public_key_hash, installation_id, success=error is ReportError.NONE, error=error)


def repeat_reports(request: Iterable[PushNotification], errors: Errors) -> tuple[Report, ...]:
    """Return the reports of a repeated request, given the earlier error of each of its positions."""
    return tuple(
        _report(notification.public_key_hash, notification.installation_id, errors[position])
        for position, notification in enumerate(request)
        if position in errors
    )


def errors_of(reports: bytes) -> Errors:
    """Return the reported error of each position of a request that was answered."""
    return {position: ReportError(code - 1) for position, code in enumerate(reports) if code}


def errors_decided(decided: bytes | None) -> Errors:
    """Return the reported error of each position that was decided at once."""
    return {one.position: one.error for one in unpack(decided)}
