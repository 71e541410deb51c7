"""Accepting pushes to routes: for a front door that has verified the sender itself and knows the device.

Nothing is decided here: what is handed over is to be delivered, and stored is all that its sender is told. So a request
of one push is stored as answered, and no worker ever settles it. Any process may do this, also one that makes no
batches: the workers hear of it and send it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kit.db.statements import fetch, new_ids
from kit.metrics.batches import count
from kit.turns import wake as wake_workers
from notifications import metrics
from notifications.messages import Grade
from notifications.models import Notification
from notifications.policy import Verdict
from registrations.encryption import Purpose
from registrations.keyring import keyring

# A sender that missed our answer repeats its push within this time. Later, the same name means another push.
REPEATED_WITHIN = timedelta(minutes=10)
State = Notification.State


@dataclass(frozen=True, slots=True)
class DirectPush:
    """One push to one route.

    ``key`` (32 bytes) is the same when the push is repeated. ``recipient`` is the front door's name for the device, and
    ``sender`` any value that tells senders apart, for reports. ``message`` is the content with a payload, or empty, and
    ``wake`` the content without one. Pushes with the same ``collapse_id`` (at most 16 bytes) replace each other on the
    device; where it is empty each stands for itself. ``due_at`` may be later than now.
    """

    key: bytes
    recipient: str
    sender: bytes
    route_id: int
    route_generation: int
    grade: Grade
    wake: bytes = field(repr=False)
    due_at: datetime
    expires_at: datetime
    message: bytes = field(default=b"", repr=False)
    collapse_id: bytes = b""


_FIND_REPEATED = """
    SELECT dedup_key, created_at > %(since)s FROM notifications_notification
    WHERE dedup_key = ANY (%(keys)b::bytea[])
"""


def find_repeated(keys: Collection[bytes], *, now: datetime) -> set[bytes]:
    """Return those of these keys that were stored a short while ago. Release older ones, so that they may be used
    again; belongs into the transaction that stores the others.
    """
    if not keys:
        return set()
    found = dict(fetch(_FIND_REPEATED, {"keys": list(keys), "since": now - REPEATED_WITHIN}))
    old = [key for key, is_recent in found.items() if not is_recent]
    if old:
        Notification.objects.filter(dedup_key__in=old).update(dedup_key=None)
    return {key for key, is_recent in found.items() if is_recent}


# What is due later waits as a retry does, as what is pending may go out a few seconds early. A worker sorts it into its
# queue when it is due.
_STORE = """
    WITH request AS (
        INSERT INTO notifications_notificationrequest
            (id, request_key, source_key, sender_digest, message_id, state, answered_at, front_door, received_at,
             reply_due_at)
        SELECT *, '', 'answered', %(now)s, %(front_door)s, %(now)s, %(now)s
        FROM unnest(%(r_id)b::bigint[], %(r_key)b::bytea[], %(key)b::bytea[], %(r_sender)b::bytea[])
    )
    INSERT INTO notifications_notification
        (id, request_id, installation_id, route_id, route_generation, dedup_key, collapse_id, grade, message, wake,
         state, next_attempt_at, expires_at, position, public_key_hash, type, report, payload_dropped, attempt_count,
         ambiguous_count, created_at)
    SELECT *, 0, '', 0, 'success', FALSE, 0, 0, %(now)s
    FROM unnest(%(id)b::bigint[], %(r_id)b::bigint[], %(recipient)b::text[], %(route)b::bigint[],
                %(generation)b::bigint[], %(key)b::bytea[], %(collapse)b::bytea[], %(grade)b::text[],
                %(message)b::bytea[], %(wake)b::bytea[], %(state)b::text[], %(due_at)b::timestamptz[],
                %(expires_at)b::timestamptz[])
"""


def store(front_door: str, pushes: Sequence[DirectPush], *, now: datetime) -> None:
    """Store pushes and tell the workers; belongs into a transaction.

    Raises IntegrityError when another process has stored one of them meanwhile; `find_repeated` knows it then.
    """
    if not pushes:
        return
    request_ids, ids = new_ids(
        ("notifications_notificationrequest", len(pushes)), ("notifications_notification", len(pushes))
    )
    own = {"front_door": front_door, "now": now, "r_id": request_ids, "id": ids}
    fetch(_STORE, own | _columns(pushes, now=now))
    wake_workers()
    count(metrics.REQUESTS, {("new",): len(pushes)})
    count(metrics.NOTIFICATIONS, {(Verdict.DELIVER,): len(pushes)})


def _columns(pushes: Sequence[DirectPush], *, now: datetime) -> dict[str, list[Any]]:
    moment = round(now.timestamp() * 10**6).to_bytes(8)
    return {
        # The key may be used again when it is released, the name of a request may not.
        "r_key": [push.key + moment for push in pushes],
        "r_sender": [keyring().digest(Purpose.SENDER, push.sender) for push in pushes],
        "recipient": [push.recipient for push in pushes],
        "route": [push.route_id for push in pushes],
        "generation": [push.route_generation for push in pushes],
        "key": [push.key for push in pushes],
        "collapse": [push.collapse_id or push.key[:16] for push in pushes],
        "grade": [push.grade.value for push in pushes],
        "message": [push.message or None for push in pushes],
        "wake": [push.wake for push in pushes],
        "state": [(State.RETRYING if push.due_at > now else State.PENDING).value for push in pushes],
        "due_at": [push.due_at for push in pushes],
        "expires_at": [push.expires_at for push in pushes],
    }


_PROLONG = """
    UPDATE notifications_notification AS n SET expires_at = item.expires_at
    FROM unnest(%b::bigint[], %b::timestamptz[]) AS item (id, expires_at)
    WHERE n.id = item.id AND n.expires_at < item.expires_at AND n.state IN ('pending', 'retrying', 'ambiguous')
"""


def prolong(expiries: Sequence[tuple[int, datetime]]) -> None:
    """Let notifications that wait live longer, because they stand for later pushes, too."""
    if expiries:
        fetch(_PROLONG, [[pk for pk, _ in expiries], [expires_at for _, expires_at in expiries]])
