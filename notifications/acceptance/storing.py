"""Storage of requests: one statement inserts requests with their notifications, claimed or not, and their keys.

    a sender's request ──▶ `acceptance` decides about each notification ──┐
                                                                         ├──▶ `store` ──▶ one INSERT
    a push of a bridge that verified its sender itself ──▶ `store_pushes` ┘

Two keys identify a repeat. The key of a request has a row of its own in `RequestDigest`, for 90 days. The key of a
notification is unique among the open notifications. Among those that ended in the last days it is looked up: see
`_REFUSE_ENDED`. A request that notifies nobody has no other row than its `RefusedRequest`.

`store_pushes` decides nothing: its pushes are to be delivered, and their sender learns only that they are stored. Their
requests are stored as answered, so no worker settles them. Any process may call it, also one that processes no batches:
PostgreSQL notifies the workers, which send the pushes.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple

from kit.batches.batch import wake as wake_workers
from kit.db.base import Rows
from kit.db.partitions import day_of, first_day, with_days
from kit.db.statements import Statement, array_value, fetch, new_ids, table, write, write_rows
from kit.metrics import count
from notifications import metrics
from notifications.messages import Outcome
from notifications.models import (
    NOTIFICATION,
    REQUEST,
    AnsweredRequest,
    DecidedAtOnce,
    EndedAttempt,
    EndedNotification,
    Notification,
    NotificationRequest,
    OpenNotification,
    OpenRequest,
    RefusedHour,
    RefusedRequest,
    RequestDigest,
)
from notifications.queues.queues import UNSORTED, WAITS
from notifications.rules.policy import Verdict
from notifications.rules.reports import BYTES_EACH, SUCCESS
from registrations.encryption import Purpose, keyring
from registrations.models import Registration

State = Notification.State

# Length of the key of a request that may be repeated. A key of `push_request` is longer, and never repeats.
KEY_BYTES = 32
DIGEST_BYTES = 16
RECIPIENT_BYTES = DecidedAtOnce.RECIPIENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotification:
    """A notification that is to be stored.

    A device replaces a push by a later one with the same ``collapse_id`` (at most 16 bytes). ``unsent_since`` is when
    its message arrived, or when it is planned for. ``message`` is the payload for the device, and ``wake`` the content
    of a graded push without its payload.
    """

    position: int = 0
    public_key_hash: bytes = b""
    installation_id: str
    type: int = 0
    state: str = State.PENDING.value
    queue_id: int = UNSORTED
    route_id: int
    route_generation: int
    dedup_key: bytes
    collapse_id: bytes = b""
    chat_id: bytes | None = None
    message: bytes | None = field(default=None, repr=False)
    wake: bytes | None = field(default=None, repr=False)
    grade: str = ""
    attempt_count: int = 0
    next_attempt_at: datetime | None
    lease_until: datetime | None = None
    is_wake_up: bool = False
    shortened_by: str = ""
    expires_at: datetime
    unsent_since: datetime | None = None
    # Of the first attempt, where the notification is claimed when it is stored.
    claimed_at: datetime | None = None
    gateway: str = ""
    token_type: int = 0
    app_topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that is to be stored, with those of its notifications that are to be delivered.

    ``reports`` and ``names`` are those of all its notifications, packed. ``decided_for`` are the positions and the key
    hashes of the others, as far as staff find them by their recipients.
    """

    request_key: bytes
    source_key: bytes
    reply_address: bytes | None
    sender_digest: bytes
    message_id: bytes
    answered_at: datetime | None
    reports: bytes
    names: bytes = b""
    decided: bytes | None = None
    decided_for: Sequence[tuple[int, bytes]] = ()
    notifications: Sequence[NewNotification]


# Rows are inserted in the order of their keys (`digest`, `dedup_key`). Workers that store the same rows then wait for
# each other instead of dead-locking. What was decided about nobody who ever registered is not listed for staff, because
# anybody can make up recipients.
_STORE = f"""
    WITH digest AS (
        INSERT INTO notifications_requestdigest (digest, received_at)
        SELECT digest, %(now)s FROM unnest(%(digests)b::bytea[]) AS new (digest) ORDER BY 1
    ), request AS (
        SELECT *, %(bridge)s AS bridge, %(now)s::timestamptz AS received_at,
               %(reply_due_at)s::timestamptz AS reply_due_at
        FROM unnest(%(r_id)b::bigint[], %(r_request_key)b::bytea[], %(r_source_key)b::bytea[],
                    %(r_reply_address)b::bytea[], %(r_sender_digest)b::bytea[], %(r_message_id)b::bytea[],
                    %(r_answered_at)b::timestamptz[], %(r_decided)b::bytea[], %(r_reports)b::bytea[],
                    %(r_names)b::bytea[])
            AS new (id, request_key, source_key, reply_address, sender_digest, message_id, answered_at, decided,
                    reports, names)
    ), open_request AS (
        INSERT INTO notifications_openrequest ({REQUEST}, reply_address, reports, names)
        SELECT {REQUEST}, reply_address, reports, names FROM request WHERE answered_at IS NULL
    ), answered_request AS (
        INSERT INTO notifications_answeredrequest ({REQUEST}, reports, answered_at, ended_on)
        SELECT {REQUEST}, reports, answered_at, %(today)s FROM request WHERE answered_at IS NOT NULL
    ), decided AS (
        INSERT INTO notifications_decidedatonce (recipient, request_id, position, decided_on)
        SELECT substr(key_hash, 1, {RECIPIENT_BYTES}), request_id, position, %(today)s
        FROM unnest(%(d_key_hash)b::bytea[], %(d_request_id)b::bigint[], %(d_position)b::smallint[])
            AS new (key_hash, request_id, position)
        WHERE (SELECT TRUE FROM {table(Registration)} WHERE public_key_hash = new.key_hash LIMIT 1)
    )
    INSERT INTO notifications_opennotification
        (id, request_id, attempt_id, position, public_key_hash, installation_id, type, state, queue_id, route_id,
         route_generation, dedup_key, collapse_id, chat_id, message, wake, grade, attempt_count, next_attempt_at,
         lease_until, is_wake_up, shortened_by, expires_at, unsent_since, claimed_at, gateway, token_type,
         app_topic, payload_dropped, ambiguous_count, created_at)
    SELECT *, FALSE, 0, %(now)s
    FROM unnest(%(n_id)b::bigint[], %(n_request_id)b::bigint[], %(n_attempt_id)b::bigint[],
                %(n_position)b::smallint[], %(n_public_key_hash)b::bytea[], %(n_installation_id)b::text[],
                %(n_type)b::bigint[], %(n_state)b::text[], %(n_queue_id)b::integer[], %(n_route_id)b::bigint[],
                %(n_route_generation)b::bigint[], %(n_dedup_key)b::bytea[], %(n_collapse_id)b::bytea[],
                %(n_chat_id)b::bytea[], %(n_message)b::bytea[], %(n_wake)b::bytea[], %(n_grade)b::text[],
                %(n_attempt_count)b::integer[], %(n_next_attempt_at)b::timestamptz[],
                %(n_lease_until)b::timestamptz[], %(n_is_wake_up)b::boolean[], %(n_shortened_by)b::text[],
                %(n_expires_at)b::timestamptz[], %(n_unsent_since)b::timestamptz[],
                %(n_claimed_at)b::timestamptz[], %(n_gateway)b::text[], %(n_token_type)b::smallint[],
                %(n_app_topic)b::text[])
    ORDER BY 12
"""


class Ids(NamedTuple):
    """Ids of rows that are to be stored, in the order in which the rows are passed."""

    requests: Sequence[int]
    notifications: Sequence[int]
    attempts: Sequence[int]


def ids_for(requests: int, notifications: int, attempts: int) -> Statement:
    """Return the statement that takes ids for these numbers of rows. Its one row makes an `Ids`."""
    return new_ids(
        ("notifications_openrequest", requests),
        ("notifications_opennotification", notifications),
        ("notifications_endedattempt", attempts),
    )


def store(bridge: str, requests: Sequence[NewRequest], free: Ids, *, now: datetime, reply_due_at: datetime) -> Ids:
    """Store requests of one bridge with their notifications, and return the ids that they and the first attempts took.

    The rows take the first ids of ``free``. The caller opens the transaction. The statement raises IntegrityError
    when another process has stored one of the requests meanwhile; `find_known` then finds that request.
    """
    notifications = [notification for request in requests for notification in request.notifications]
    claimed = sum(notification.claimed_at is not None for notification in notifications)
    ids = Ids(free.requests[: len(requests)], free.notifications[: len(notifications)], free.attempts[:claimed])
    attempts = iter(ids.attempts)
    parents = [pk for pk, r in zip(ids.requests, requests, strict=True) for _ in r.notifications]
    decided = [(pk, *each) for pk, r in zip(ids.requests, requests, strict=True) for each in r.decided_for]
    repeatable = [request.request_key for request in requests if len(request.request_key) <= KEY_BYTES]
    own = {
        "bridge": bridge,
        "digests": [digest_of(bridge, key) for key in repeatable],
        "now": now,
        "reply_due_at": reply_due_at,
        "r_id": ids.requests,
        "n_id": ids.notifications,
        "n_request_id": parents,
        "n_attempt_id": [next(attempts) if each.claimed_at else None for each in notifications],
        "d_request_id": [request_id for request_id, _, _ in decided],
        "d_position": [position for _, position, _ in decided],
        "d_key_hash": [key_hash for _, _, key_hash in decided],
        "today": day_of(now),
    }
    columns = _columns("r", NewRequest, requests) | _columns("n", NewNotification, notifications)
    write(_STORE, own | columns)
    if notifications:
        write(with_days(_REFUSE_ENDED, now), {"keys": [notification.dedup_key for notification in notifications]})
    return ids


# Another process may have stored and ended one of these keys since they were looked up. Our keys are in the unique
# index of open rows now, so no process can do so any more. The statement would copy such an ended row beside ours,
# which PostgreSQL refuses.
_REFUSE_ENDED: LiteralString = f"""
    INSERT INTO notifications_opennotification ({NOTIFICATION}, state)
    SELECT {NOTIFICATION}, '{State.PENDING}' FROM notifications_endednotification
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({{days}})
"""


# Two workers may store the same request at the same time. Both answer it, and neither notifies anybody.
_STORE_REFUSED: LiteralString = f"""
    WITH stored AS (
        INSERT INTO {table(RefusedRequest)} (digest, decided, bridge, received_at)
        SELECT digest, decided, %(bridge)s, %(now)s
        FROM unnest(%(digests)b::bytea[], %(decided)b::bytea[]) AS new (digest, decided) ORDER BY 1
        ON CONFLICT DO NOTHING RETURNING decided
    ), each AS (
        SELECT get_byte(decided, place) AS verdict
        FROM stored CROSS JOIN generate_series(0, length(decided) - 1, {BYTES_EACH}) AS place
    )
    INSERT INTO {table(RefusedHour)} AS hour (begin_at, bridge, verdict, session, count)
    SELECT date_trunc('hour', %(now)s::timestamptz, 'UTC'), %(bridge)s, verdict, pg_backend_pid(), count(*)
    FROM each WHERE verdict > 0 GROUP BY verdict
    ON CONFLICT (begin_at, bridge, verdict, session) DO UPDATE SET count = hour.count + excluded.count
"""


def store_refused(bridge: str, requests: Sequence[tuple[bytes, bytes]], *, now: datetime) -> None:
    """Store what is kept of requests that notify nobody, and count their verdicts. Each is given by its key and its
    packed verdicts.
    """
    if requests:
        digests, decided = [digest_of(bridge, key) for key, _ in requests], [packed for _, packed in requests]
        write(_STORE_REFUSED, {"bridge": bridge, "now": now, "digests": digests, "decided": decided})


def _columns(prefix: str, kind: type[Any], rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of these rows by the names of their parameters."""
    return {f"{prefix}_{each.name}": [getattr(row, each.name) for row in rows] for each in fields(kind)}


# What is stored already -----------------------------------------------------------------------------------------------


class KnownRequest(NamedTuple):
    """A request that is stored already. One that notified nobody has no id, and no reports but its decisions."""

    id: int | None
    received_at: datetime
    is_answered: bool
    decided: bytes | None
    reports: bytes | None = None


class Known(NamedTuple):
    """The stored rows that a batch of requests repeats.

    ``requests`` are the stored requests by key. ``dedup_keys`` are the keys in use, each with the time since when.
    ``replayed`` are the keys of requests that were decided so long ago that only their digest is left.
    """

    requests: dict[bytes, KnownRequest]
    dedup_keys: dict[bytes, datetime]
    replayed: set[bytes]


# Notifications with these ends reached nobody, unless an attempt was ambiguous. When the phone has registered its new
# token, a sender's repeat must be delivered. So these keys count as in use since 1970, and are released. An unconfirmed
# one is released, too: a lost push is worse than a second one under the same collapse id.
_MAY_HAVE_REACHED_NOBODY: LiteralString = f"""
    state IN ('{State.DEAD_TOKEN}', '{State.WITHDRAWN}', '{State.UNDELIVERABLE}', '{State.EXPIRED}',
              '{State.UNCONFIRMED}')
"""
_FIND_DIGESTS: LiteralString = f"""
    SELECT digest, received_at, TRUE, NULL FROM notifications_requestdigest WHERE digest = ANY (%(digests)b::bytea[])
    UNION ALL SELECT digest, received_at, TRUE, decided FROM {table(RefusedRequest)}
    WHERE digest = ANY (%(digests)b::bytea[]) AND received_at >= {{since}} AND received_at < {{until}}
"""
_FIND_KEYS: LiteralString = f"""
    SELECT dedup_key, CASE WHEN {_MAY_HAVE_REACHED_NOBODY} THEN 'epoch' ELSE created_at END, FALSE, NULL
"""
_FIND_KNOWN: LiteralString = f"""
    {_FIND_DIGESTS}
    UNION ALL {_FIND_KEYS} FROM notifications_opennotification WHERE dedup_key = ANY (%(dedup_keys)b::bytea[])
    UNION ALL {_FIND_KEYS} FROM notifications_endednotification
    WHERE dedup_key = ANY (%(dedup_keys)b::bytea[]) AND ended_on IN ({{days}})
"""
_FIND_REQUESTS: LiteralString = f"""
    SELECT request_key, id, received_at, state = '{NotificationRequest.State.ANSWERED}', decided, reports
    FROM notifications_notificationrequest
    WHERE bridge = %(bridge)s AND request_key = ANY (%(keys)b::bytea[]) AND ended_on >= %(since)s
"""


def digest_of(bridge: str, request_key: bytes) -> bytes:
    """Return the 16 bytes that identify a request, also after its row is removed."""
    return hashlib.sha256(bridge.encode() + b"\0" + request_key).digest()[:DIGEST_BYTES]


def forget_keys(keys: Iterable[tuple[str, bytes]]) -> None:
    """Forget these requests, each given by bridge and key, so that they may come again."""
    digests = [digest_of(bridge, key) for bridge, key in keys]
    for known in (RequestDigest, RefusedRequest):
        known.objects.filter(digest__in=digests).delete()


def remove_notifications(notification_ids: Collection[int]) -> None:
    """Remove notifications with their attempts. The caller has locked the open ones."""
    EndedAttempt.objects.filter(notification__in=notification_ids).delete()
    for notifications in (OpenNotification, EndedNotification):
        notifications.objects.filter(pk__in=notification_ids).delete()


def remove_requests(request_ids: Collection[int]) -> None:
    """Remove requests with their notifications and attempts. The caller has locked the open ones."""
    remove_notifications(set(Notification.objects.filter(request__in=request_ids).values_list("pk", flat=True)))
    for requests in (OpenRequest, AnsweredRequest):
        requests.objects.filter(pk__in=request_ids).delete()


def find_known(
    bridge: str, request_keys: Collection[bytes], dedup_keys: Collection[bytes], *, now: datetime
) -> Statement:
    """Return the statement that finds what is stored of these keys. `read_known` reads its rows."""
    digests = [digest_of(bridge, key) for key in request_keys]
    return with_days(_FIND_KNOWN, now), {"digests": digests, "dedup_keys": list(dedup_keys)}


def read_known(bridge: str, request_keys: Collection[bytes], rows: Rows) -> Known:
    """Return what the statement of `find_known` found, with the stored requests that are repeated."""
    digests = {digest: (at, decided) for digest, at, is_request, decided in rows if is_request}
    found = {key: digests[each] for key in request_keys if (each := digest_of(bridge, key)) in digests}
    received = {key: at for key, (at, decided) in found.items() if decided is None}
    stored = _find_requests(bridge, received) if received else {}
    refused = {
        key: KnownRequest(None, at, True, decided) for key, (at, decided) in found.items() if decided is not None
    }
    dedup_keys = {key: created_at for key, created_at, is_request, _ in rows if not is_request}
    return Known(stored | refused, dedup_keys, received.keys() - stored.keys())


def _find_requests(bridge: str, received: Mapping[bytes, datetime]) -> dict[bytes, KnownRequest]:
    keys = {"bridge": bridge, "keys": list(received), "since": first_day(received.values())}
    return {key: KnownRequest(*request) for key, *request in fetch(_FIND_REQUESTS, keys)}


def find_repeats(bridge: str, request_keys: Collection[bytes], *, now: datetime) -> set[bytes]:
    """Return the keys of requests that were decided before, however long ago."""
    keys = {digest_of(bridge, key): key for key in request_keys}
    return {keys[digest] for digest, *_ in fetch(with_days(_FIND_DIGESTS, now), {"digests": list(keys)})}


def release_old(dedup_keys: Mapping[bytes, datetime], *, until: datetime, now: datetime) -> set[bytes]:
    """Release the dedup keys in use since ``until`` or longer, and return those that stay in use.

    It belongs into the transaction that stores the notifications with the released keys.
    """
    old = {key for key, created_at in dedup_keys.items() if created_at <= until}
    if not old:
        return set(dedup_keys)
    for release in (_RELEASE_OPEN, _RELEASE_ENDED):  # in this order, as open ones may end meanwhile
        write(with_days(release, now), {"keys": list(old), "until": until})
    kept = {key for (key,) in fetch(with_days(_FIND_IN_USE, now), {"keys": list(old)})}
    return dedup_keys.keys() - old | kept


# Another worker may have released a key and stored another notification under it meanwhile. That notification keeps it.
_RELEASE_OPEN: LiteralString = """
    UPDATE notifications_opennotification SET dedup_key = NULL
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND created_at <= %(until)s
"""
_RELEASE_ENDED: LiteralString = f"""
    UPDATE notifications_endednotification AS notification SET dedup_key = NULL
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({{days}}) AND (
        created_at <= %(until)s OR state = '{State.UNCONFIRMED}' OR {_MAY_HAVE_REACHED_NOBODY} AND NOT EXISTS (
            SELECT FROM notifications_endedattempt
            WHERE notification_id = notification.id AND outcome = '{Outcome.AMBIGUOUS}'
                AND started_at > %(until)s
        )
    )
"""
_FIND_IN_USE: LiteralString = """
    SELECT dedup_key FROM notifications_opennotification WHERE dedup_key = ANY (%(keys)b::bytea[])
    UNION ALL SELECT dedup_key FROM notifications_endednotification
    WHERE dedup_key = ANY (%(keys)b::bytea[]) AND ended_on IN ({days})
"""


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


def store_pushes(bridge: str, pushes: Sequence[NewRequest], *, now: datetime) -> None:
    """Store what `push_request` made. PostgreSQL notifies the workers."""
    if pushes:
        [free] = fetch(*ids_for(len(pushes), len(pushes), 0))
        store(bridge, pushes, Ids._make(free), now=now, reply_due_at=now)
        wake_workers()
        count(metrics.REQUESTS, {("new",): len(pushes)})
        count(metrics.NOTIFICATIONS, {(Verdict.DELIVER,): len(pushes)})


def push_request(push: NewNotification, *, sender: bytes, now: datetime) -> NewRequest:
    """Return the request of one push. ``sender`` is any value that tells senders apart, for reports.

    A repeated push has the same ``dedup_key``. A push with a ``next_attempt_at`` in the future waits in state
    `retrying`, because a pending one may go out some seconds early. A push without a collapse id replaces no other.
    """
    is_later = push.next_attempt_at is not None and push.next_attempt_at > now
    # A dedup key may be used again when it is released. The keys of a request and of a collapsed push may not.
    request_key = push.dedup_key + round(now.timestamp() * 10**6).to_bytes(8)
    notification = replace(
        push,
        state=(State.RETRYING if is_later else State.PENDING).value,
        collapse_id=push.collapse_id or hashlib.sha256(request_key).digest()[:16],
    )
    return NewRequest(
        request_key=request_key,
        source_key=push.dedup_key,
        reply_address=None,
        sender_digest=keyring().digest(Purpose.SENDER, sender),
        message_id=b"",
        answered_at=now,
        reports=bytes([SUCCESS]),
        notifications=[notification],
    )


_EXPIRY: LiteralString = array_value("%(ids)b::bigint[]", "n.id", "expiries", "timestamptz")
_PROLONG: LiteralString = f"""
    UPDATE notifications_opennotification AS n SET expires_at = {_EXPIRY}
    WHERE n.id = ANY (%(ids)b::bigint[]) AND n.expires_at < {_EXPIRY} AND {WAITS}
"""


def prolong(expiries: Sequence[tuple[int, datetime]]) -> None:
    """Extend the lives of waiting notifications, because they stand for later pushes, too."""
    write_rows(_PROLONG, ("ids", "expiries"), expiries)
