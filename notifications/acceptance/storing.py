"""Storage of requests: one statement inserts requests with their notifications, claimed or not, and their keys.

Also here: the limits of pushes, and what is counted and left out beyond them.

    a sender's request ──▶ `acceptance` decides about each notification ──┐
                                                                         ├──▶ `store` ──▶ one INSERT
    a push of a bridge that verified its sender itself ──▶ `store_pushes` ┘

Two keys identify a repeat. The key of a request has a row of its own in `RequestDigest`, for 90 days. The key of a
notification is unique among the open notifications. Among those that ended in the last days it is looked up: see
`REFUSE_ENDED`. A request that notifies nobody has no other row than its `RefusedRequest`.

`store_pushes` decides nothing: its pushes are to be delivered, and their sender learns only that they are stored. Their
requests are stored as answered, so no worker settles them. Any process may call it, also one that processes no batches:
PostgreSQL notifies the workers, which send the pushes.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from kit.batches.batch import wake as wake_workers
from kit.buckets.bucket import BucketLimits, Limit
from kit.db.base import Rows, Statement, fetch, write, write_rows
from kit.db.clock import day_of, first_day, with_days
from kit.telemetry import count
from notifications import metrics
from notifications.acceptance import statements
from notifications.messages import APART, Effect, PushLimit
from notifications.models import DecidedAtOnce, EndedNotification, Notification
from notifications.policy import Verdict
from notifications.queues.claim import Claim
from notifications.reports import REPORT_ERRORS, SUCCESS, Errors, Request, errors_decided, errors_of, lease_until
from registrations.encryption import Purpose, keyring

# Length of the key of a request that may be repeated. Those of `store_pushes` are longer, and never repeat.
KEY_BYTES = 32
DIGEST_BYTES = 16


# The fields of a request, and of a claim, that are columns of a new row.
_OF_REQUEST = (
    *("id", "bridge", "request_key", "source_key", "reply_address", "sender_digest", "message_id", "received_at"),
    *("reply_due_at", "is_complete", "reports", "names", "decided"),
)
_OF_CLAIM = (
    *("notification_id", "request_id", "attempt_id", "position", "public_key_hash", "type", "queue_id", "route_id"),
    *("route_generation", "collapse_id", "chat_id", "message", "wake", "grade", "due_at", "expires_at", "unsent_since"),
    *("gateway", "installation_id", "dedup_key", "shortened_by", "is_wake_up"),
)


def store(
    requests: Sequence[Request],
    pushes: Sequence[Claim],
    listed: Sequence[tuple[int, int, bytes]] = (),
    *,
    now: datetime,
) -> None:
    """Store requests, and those of their notifications that are to be delivered. Complete requests are answered.

    Notifications that get no row are in ``listed``, by request, position and key hash, as far as staff find them by
    their recipients. The caller opens the transaction. The statement raises IntegrityError when another process has
    stored one of the requests meanwhile; `find_known` then finds that request.
    """
    if not requests:
        return
    rows = {
        "digests": [digest_of(r.bridge, r.request_key) for r in requests if len(r.request_key) <= KEY_BYTES],
        "now": now,
        "today": day_of(now),
        "lease_until": lease_until(now),
        "d_request_id": [request_id for request_id, _, _ in listed],
        "d_position": [position for _, position, _ in listed],
        "d_key_hash": [key_hash for _, _, key_hash in listed],
        "n_token_type": [push.app.token_type for push in pushes],
        "n_app_topic": [push.app.app_topic for push in pushes],
    }
    write(statements.STORE, rows | _columns("r", _OF_REQUEST, requests) | _columns("n", _OF_CLAIM, pushes))
    if pushes:
        write(with_days(statements.REFUSE_ENDED, now), {"keys": [push.dedup_key for push in pushes]})


def _columns(prefix: str, names: Iterable[str], rows: Sequence[object]) -> dict[str, list[Any]]:
    """Return the columns of these rows by the names of their parameters."""
    return {f"{prefix}_{name}": [getattr(row, name) for row in rows] for name in names}


def store_refused(bridge: str, requests: Sequence[tuple[bytes, bytes]], *, now: datetime) -> None:
    """Store what is kept of requests that notify nobody, and count their verdicts. Each is given by its key and its
    packed verdicts.
    """
    if requests:
        digests, decided = [digest_of(bridge, key) for key, _ in requests], [packed for _, packed in requests]
        write(statements.STORE_REFUSED, {"bridge": bridge, "now": now, "digests": digests, "decided": decided})


class Known(NamedTuple):
    """The stored rows that a batch of requests repeats.

    ``requests`` are the stored requests by key: the reported error of each position, or None while a request waits.
    ``dedup_keys`` are the keys in use, each with the time since when. ``replayed`` are the keys of requests that were
    decided so long ago that only their digest is left.
    """

    requests: dict[bytes, Errors | None]
    dedup_keys: dict[bytes, datetime]
    replayed: set[bytes]


def digest_of(bridge: str, request_key: bytes) -> bytes:
    """Return the 16 bytes that identify a request, also after its row is removed."""
    return hashlib.sha256(bridge.encode() + b"\0" + request_key).digest()[:DIGEST_BYTES]


def find_known(
    bridge: str, request_keys: Collection[bytes], dedup_keys: Collection[bytes], *, now: datetime
) -> Statement:
    """Return the statement that finds what is stored of these keys. `read_known` reads its rows."""
    digests = [digest_of(bridge, key) for key in request_keys]
    return with_days(statements.FIND_KNOWN, now), {"digests": digests, "dedup_keys": list(dedup_keys)}


def read_known(bridge: str, request_keys: Collection[bytes], rows: Rows) -> Known:
    """Return what the statement of `find_known` found, with the stored requests that are repeated."""
    digests = {digest: (at, decided) for digest, at, is_request, decided in rows if is_request}
    found = {key: digests[each] for key in request_keys if (each := digest_of(bridge, key)) in digests}
    received = {key: at for key, (at, decided) in found.items() if decided is None}
    stored = _find_requests(bridge, received) if received else {}
    refused = {key: errors_decided(decided) for key, (_, decided) in found.items() if decided is not None}
    dedup_keys = {key: created_at for key, created_at, is_request, _ in rows if not is_request}
    return Known({**stored, **refused}, dedup_keys, received.keys() - stored.keys())


def _find_requests(bridge: str, received: Mapping[bytes, datetime]) -> dict[bytes, Errors | None]:
    since = first_day(received.values())
    found = fetch(statements.FIND_REQUESTS, {"bridge": bridge, "keys": list(received), "since": since})
    old = {pk: decided for _, pk, is_answered, reports, decided in found if is_answered and reports is None}
    errors = _load_errors(old, since=since)
    return {
        key: (errors[pk] if reports is None else errors_of(reports)) if is_answered else None
        for key, pk, is_answered, reports, _ in found
    }


def _load_errors(decided: Mapping[int, bytes | None], *, since: date) -> dict[int, Errors]:
    """Return the reported error of each position of requests that a server answered which stored no reports with them.

    The requests are given with their packed decisions. None of their notifications ended before the day ``since``.
    """
    if not decided:
        return {}
    errors = {request_id: errors_decided(packed) for request_id, packed in decided.items()}
    fixed = EndedNotification.objects.filter(request__in=errors.keys(), report__isnull=False, ended_on__gte=since)
    for request_id, position, report in fixed.values_list("request", "position", "report"):
        errors[request_id][position] = REPORT_ERRORS[Notification.Reports(report or "")]
    return errors


def find_repeats(bridge: str, request_keys: Collection[bytes], *, now: datetime) -> set[bytes]:
    """Return the keys of requests that were decided before, however long ago."""
    keys = {digest_of(bridge, key): key for key in request_keys}
    return {keys[digest] for digest, *_ in fetch(with_days(statements.FIND_DIGESTS, now), {"digests": list(keys)})}


def release_old(dedup_keys: Mapping[bytes, datetime], *, until: datetime, now: datetime) -> set[bytes]:
    """Release the dedup keys in use since ``until`` or longer, and return those that stay in use.

    It belongs into the transaction that stores the notifications with the released keys.
    """
    old = {key for key, created_at in dedup_keys.items() if created_at <= until}
    if not old:
        return set(dedup_keys)
    for release in (statements.RELEASE_OPEN, statements.RELEASE_ENDED):  # in this order, as open ones may end meanwhile
        write(with_days(release, now), {"keys": list(old), "until": until})
    kept = {key for (key,) in fetch(with_days(statements.FIND_IN_USE, now), {"keys": list(old)})}
    return dedup_keys.keys() - old | kept


# Pushes whose sender the bridge has verified --------------------------------------------------------------------------

# A sender that missed our answer repeats its push within this time. Later, the same key means another push.
REPEATED_WITHIN = timedelta(minutes=10)


def find_repeated(
    bridge: str, keys: Collection[bytes], answered: tuple[datetime, datetime], *, now: datetime
) -> set[bytes]:
    """Return those of these keys that were stored within `REPEATED_WITHIN`, and whose senders may lack our answer.

    The senders of all pushes that were stored between the two times of ``answered`` have it.
    """
    known = read_known(bridge, (), fetch(*find_known(bridge, (), keys, now=now)) if keys else []).dedup_keys
    old = {key: at for key, at in known.items() if at < now - REPEATED_WITHIN or answered[0] <= at < answered[1]}
    return known.keys() - old.keys() | release_old(old, until=now, now=now)


def store_pushes(bridge: str, pushes: Sequence[tuple[Claim, bytes]], *, now: datetime) -> None:
    """Store pushes that have no ids yet, each in a request of its own. PostgreSQL notifies the workers.

    Each comes with its sender: any value that tells senders apart, for reports. A push without a collapse id replaces
    no other.
    """
    if not pushes:
        return
    requests, stored = [], []
    wanted = {"requests": len(pushes), "notifications": len(pushes), "attempts": 0}
    [(request_ids, notification_ids, _)] = fetch(statements.NEW_IDS, wanted)
    for (push, sender), request_id, notification_id in zip(pushes, request_ids, notification_ids, strict=True):
        # A dedup key may be used again when it is released. The keys of a request and of a collapsed push may not.
        key = push.dedup_key + round(now.timestamp() * 10**6).to_bytes(8)
        collapse_id = push.collapse_id or hashlib.sha256(key).hexdigest()[:32]
        stored.append(replace(push, notification_id=notification_id, request_id=request_id, collapse_id=collapse_id))
        answered = Request(request_id, bridge, push.dedup_key, b"", b"", now, now, reports=bytes([SUCCESS]))
        digest = keyring().digest(Purpose.SENDER, sender)
        requests.append(answered._replace(request_key=key, sender_digest=digest))
    store(requests, stored, now=now)
    wake_workers()
    count(metrics.REQUESTS, {("new",): len(pushes)})
    count(metrics.NOTIFICATIONS, {(Verdict.DELIVER,): len(pushes)})


def prolong(expiries: Sequence[tuple[int, datetime]]) -> None:
    """Extend the lives of waiting notifications, because they stand for later pushes, too."""
    write_rows(statements.PROLONG, ("ids", "expiries"), expiries)


# The limits of pushes, and the counter of pushes beyond them ----------------------------------------------------------
#
# The counter has a row for each installation and UTC day, and one for all installations in each minute. Each session of
# the database has rows of its own, so that no batch waits for another one.

# Limits of one address for the types in `APART`. Other notifications do not use them up.
APART_LIMITS: BucketLimits = (Limit(30, 10.0), Limit(600, 3600.0))
# The effect of a limit, by the verdict on the push beyond it.
EFFECTS = {
    Verdict.COALESCED: Effect.MERGED,
    Verdict.DELIVER: Effect.SHORTENED,
    Verdict.OVERLOADED: Effect.REFUSED,
}


class Beyond(NamedTuple):
    """A push beyond a limit. ``limit`` is a `PushLimit`, or the name of a limit of a bridge.

    Without an ``installation_id`` the installation is not known, and the push counts for all together only.
    """

    public_key_hash: bytes
    installation_id: str
    effect: Effect
    limit: str


def count_beyond(pushes: Iterable[Beyond], *, now: datetime) -> None:
    """Count pushes beyond a limit, in the caller's transaction."""
    minute = now.astimezone(UTC).replace(second=0, microsecond=0)
    day = minute.replace(hour=0, minute=0)
    rows: Counter[tuple[bytes, str, datetime, str, str]] = Counter()
    for key_hash, name, effect, limit in pushes:
        rows[b"", "", minute, str(effect), str(limit)] += 1
        if name:
            rows[key_hash[: DecidedAtOnce.RECIPIENT_BYTES], name, day, str(effect), str(limit)] += 1
    if rows:
        names = ("recipients", "installations", "begins", "effects", "limits")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        write(statements.COUNT_BEYOND, {**columns, "counts": list(rows.values())})
        count(
            metrics.BEYOND_LIMITS, {(effect, limit): n for (_, name, _, effect, limit), n in rows.items() if not name}
        )


# Pushes that wait for one address -------------------------------------------------------------------------------------
#
# A push makes the phone fetch everything that waits for it, so the newest pushes that wait for an address are enough.
# When a new one exceeds their limit, the oldest is left out, because it would expire first.


def find_wake_ups(route_ids: Collection[int], *, still_at: datetime) -> set[tuple[int, bool]]:
    """Return the routes with a waiting wake-up that does not expire before ``still_at``.

    The second item says whether the wake-up is for the types in `APART`.
    """
    rows = fetch(statements.FIND_WAKE_UPS, {"routes": list(route_ids), "still_at": still_at})
    return {(route_id, type_ in APART) for route_id, type_ in rows}


def leave_out_oldest(route_ids: Collection[int], *, limit: int, now: datetime) -> None:
    """Coalesce the oldest notifications of these routes, until ``limit`` of each wait."""
    if not route_ids:
        return
    values = {"routes": list(route_ids), "limit": limit, "now": now, "today": day_of(now)}
    left_out = fetch(statements.LEAVE_OUT_OLDEST, values)
    count(metrics.FINISHED, {(Notification.State.COALESCED,): len(left_out)})
    count_beyond((Beyond(key_hash, name, Effect.MERGED, PushLimit.WAITING) for key_hash, name in left_out), now=now)
