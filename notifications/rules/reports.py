"""What senders are told about their notifications, and how it is stored.

A notification that is delivered has a row with its report. What is decided at once has none, because anybody may have
us decide about a hundred at a time: it stands in its request's row, two bytes for each place of the request. The first
is the verdict, or 0 where there is a row or no report at all, and the second the type (0 where it does not fit). The
wishes of recipients that something was against stand behind all verdicts, again two bytes for each place: 0, and the
wish.

The key hash and the installation of such a place are those of the request itself. A repeat brings them along, and
until the answer is fixed they are kept for a worker that has to answer in place of another one.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from itertools import zip_longest
from typing import NamedTuple

from notifications.messages import PushNotification, Report, ReportError
from notifications.models import Notification
from notifications.rules.policy import Verdict, Wish

# The only table between what is stored and what goes over the wire.
REPORT_ERRORS = {
    Notification.Reports.SUCCESS: ReportError.NONE,
    Notification.Reports.WRONG_TOKEN: ReportError.WRONG_TOKEN,
    Notification.Reports.NOT_REGISTERED: ReportError.NOT_REGISTERED,
    Notification.Reports.INTERNAL_ERROR: ReportError.INTERNAL_ERROR,
}

REPORTS = {error: report for report, error in REPORT_ERRORS.items()}

# The byte that stands for each verdict in the database. A number is never used for anything else.
CODES = {
    Verdict.SUPPRESSED: 1,
    Verdict.DUPLICATE: 2,
    Verdict.WRONG_TOKEN: 3,
    Verdict.NOT_REGISTERED: 4,
    Verdict.OVERLOADED: 5,
    Verdict.COALESCED: 6,
}
# The byte that stands for the wish that a suppressed notification was against.
WISH_CODES = {
    Wish.NOTIFICATIONS_OFF: 8,
    Wish.AUTHOR_BLOCKED: 9,
    Wish.CHAT_BLOCKED: 10,
    Wish.CHAT_MUTED: 11,
    Wish.MENTIONS_BLOCKED: 12,
    Wish.MENTION_NOT_ALLOWED: 13,
}
_WISHES = {code: wish for wish, code in WISH_CODES.items()}
VERDICTS = {code: verdict for verdict, code in CODES.items()}
BYTES_EACH = 2
LENGTH_BYTES = 4


class Decided(NamedTuple):
    """What was decided at once about one place of a request."""

    position: int
    verdict: Verdict
    type: int
    wish: Wish | None = None

    @property
    def error(self) -> ReportError:
        return self.verdict.error or ReportError.NONE


def pack(decided: Iterable[Decided]) -> bytes | None:
    """Return what is stored of these, or None when there is nothing."""
    verdicts, wishes = bytearray(), bytearray()
    for one in decided:
        _put(verdicts, one.position, CODES[one.verdict], one.type if 0 < one.type < 256 else 0)
        if one.wish:
            _put(wishes, one.position, 0, WISH_CODES[one.wish])
    return bytes(verdicts + wishes) or None


def _put(packed: bytearray, position: int, *pair: int) -> None:
    """Put the bytes of a place behind those of earlier places."""
    packed.extend(bytes(BYTES_EACH * (position + 1) - len(packed)))
    packed[-BYTES_EACH:] = pair


def unpack(packed: bytes | None) -> list[Decided]:
    """Return what was decided at once, in the request's order."""
    firsts, seconds = (packed or b"")[::BYTES_EACH], (packed or b"")[1::BYTES_EACH]
    codes = firsts.rstrip(b"\0")  # the last place has a verdict, and what follows begins with 0
    types, wishes = seconds[: len(codes)], seconds[len(codes) :]
    return [
        Decided(position, VERDICTS[code], type_, _WISHES.get(wish))
        for position, (code, type_, wish) in enumerate(zip_longest(codes, types, wishes, fillvalue=0))
        if code
    ]


def pack_names(notifications: Iterable[PushNotification]) -> bytes:
    """Return the key hashes and installations of these notifications."""
    parts = (part for n in notifications for part in (n.public_key_hash, n.installation_id.encode()))
    return b"".join(len(part).to_bytes(LENGTH_BYTES) + part for part in parts)


def unpack_reports(packed: bytes | None, names: bytes | None) -> dict[int, Report]:
    """Return the reports of what was decided at once, by their place in the request."""
    decided = unpack(packed)
    parts = list(_parts(names or b""))
    named = zip(decided, parts[::2], parts[1::2], strict=True)
    return {d.position: _report(key_hash, installation.decode(), d.error) for d, key_hash, installation in named}


def _parts(packed: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(packed):
        start = offset + LENGTH_BYTES
        offset = start + int.from_bytes(packed[offset:start])
        yield packed[start:offset]


def _report(public_key_hash: bytes, installation_id: str, error: ReportError) -> Report:
    return Report(public_key_hash, installation_id, success=error is ReportError.NONE, error=error)


def report_of(public_key_hash: bytes, installation_id: str, report: str | None) -> Report:
    """Return the report of a notification whose answer is fixed."""
    return _report(public_key_hash, installation_id, REPORT_ERRORS[Notification.Reports(report or "")])


def repeat_reports(request: Iterable[PushNotification], errors: Mapping[int, ReportError]) -> tuple[Report, ...]:
    """Return the reports of a request that is repeated, given what was told about each of its places."""
    return tuple(
        _report(notification.public_key_hash, notification.installation_id, errors[position])
        for position, notification in enumerate(request)
        if position in errors
    )


def load_errors(decided: Mapping[int, bytes | None], *, since: date) -> dict[int, dict[int, ReportError]]:
    """Return what was told about each place of these requests, which are given with what was decided at once. None of
    their notifications ended before the day ``since``.
    """
    errors = {request_id: {d.position: d.error for d in unpack(packed)} for request_id, packed in decided.items()}
    fixed = Notification.objects.filter(request__in=errors.keys(), report__isnull=False, ended_on__gte=since)
    for request_id, position, report in fixed.values_list("request", "position", "report"):
        errors[request_id][position] = REPORT_ERRORS[Notification.Reports(report or "")]
    return errors
