"""Claims: a process sends what it has claimed, and no other process sends it while the lease lasts.

The claim stands in the row of the notification, and the attempt is written with its result: see `recording`.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, LiteralString

import structlog

from kit.batches.batch import LONG_AGO, Batch
from kit.db.base import array_value, fetch, write, write_rows
from kit.db.clock import day_of
from kit.telemetry import count, is_on
from notifications.messages import Outcome, Push, QueueKey, Result, app_key
from notifications.metrics import LEFT_BEHIND
from notifications.models import Halt, Notification
from notifications.policy import CONFIG_RETRY_SECONDS, WORKER_LOST
from notifications.queues import halts, queues
from notifications.queues.capacity import ConcurrencyLimits, Slot
from notifications.queues.ending import end
from notifications.queues.queues import DUE, EXPIRED, UNSORTED, Queues
from notifications.reports import lease_until
from registrations.encryption import DecryptionError, Purpose, keyring
from registrations.models import Route

log = structlog.get_logger(__name__)
State = Notification.State
NO_SLOT = Slot(UNSORTED)
NOWHERE = QueueKey("", 0, None, is_proven=False)
# Queues that one claim takes notifications from, at most. They are chosen at random from the open ones with something
# due, so that workers do not all lock the heads of the same queues.
QUEUES_AT_ONCE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Push):
    """A push that is due, with its route; once it has a ``slot``, only this process sends it until its lease ends.

    ``address`` is empty until then, and ``attempt_number`` is that of the next attempt.
    """

    request_id: int = 0
    position: int = 0
    queue_id: int = UNSORTED
    created_at: datetime
    expires_at: datetime
    due_at: datetime
    unsent_since: datetime | None  # None once a push of it has begun
    is_lost: bool = False  # its last attempt is of a worker that died
    ambiguous_count: int = 0  # of its attempts so far
    failure_count: int = 0  # of those that failed because of its address
    tried_at: datetime | None = None  # when the last of them was claimed
    route_id: int
    route_state: str | None = None  # None where the recipient has unregistered
    route_generation: int
    gateway: str = ""
    address_encrypted: bytes = field(default=b"", repr=False)
    address_digest: bytes = b""
    is_route_noted: bool = False  # its address had a success within the last hour, and no failure since
    is_route_proven: bool = False  # something was delivered to its address before
    queue: QueueKey = NOWHERE
    slot: Slot = NO_SLOT
    started_at: datetime = LONG_AGO  # of the attempt
    attempt_id: int = 0
    # It is sent although a halt covers its queue, to find out whether the halt can end.
    is_probe: bool = False
    # The key of its request, only for traces: retries lack it while nothing is traced.
    source_key: bytes = field(default=b"", compare=False)
    # What nobody reads of its row again: it is known here until the row is stored.
    installation_id: str = field(default="", compare=False)
    dedup_key: bytes = field(default=b"", compare=False)  # of a repeated push the same
    shortened_by: str = field(default="", compare=False)
    is_wake_up: bool = field(default=False, compare=False)


Done = tuple[Claim, Result]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of a claim. A notification in the right queue that finds no capacity stays as it is.

    ``new_queues`` are queues without a row. The caller creates them after the commit.
    """

    claims: list[Claim] = field(default_factory=list)
    new_queues: set[QueueKey] = field(default_factory=set)
    is_more_left: bool = False


# The fields of a due push, in SQL. An unregistered recipient has no route.
_COLUMNS: dict[str, LiteralString] = {
    "notification_id": "n.id",
    "attempt_number": "n.attempt_count::bigint + 1",
    "token_type": "coalesce(route.token_type, 0)",
    "app_topic": "coalesce(route.app_topic, '')",
    "type": "n.type",
    "public_key_hash": "n.public_key_hash",
    "chat_id": "coalesce(n.chat_id, '')",
    "message": "coalesce(n.message, '')",
    "collapse_id": "coalesce(encode(n.collapse_id, 'hex'), '')",
    "grade": "n.grade",
    "wake": "coalesce(n.wake, '')",
    "is_payload_dropped": "n.payload_dropped",
    "request_id": "n.request_id",
    "position": "n.position",
    "queue_id": "n.queue_id",
    "created_at": "n.created_at",
    "expires_at": "n.expires_at",
    "due_at": "n.due_at",
    "unsent_since": "n.unsent_since",
    "is_lost": f"n.state = '{State.IN_FLIGHT}'",
    "ambiguous_count": f"n.ambiguous_count + (n.state = '{State.IN_FLIGHT}')::int",
    "failure_count": "n.failure_count",
    "tried_at": "n.claimed_at",
    "route_id": "coalesce(n.route_id, 0)",
    "route_state": "route.state",
    "route_generation": "coalesce(route.generation, 0)",
    "gateway": "coalesce(route.gateway, '')",
    "address_encrypted": "coalesce(route.address_encrypted, '')",
    "address_digest": "coalesce(route.address_digest, '')",
    "is_route_noted": """
        coalesce(route.failing_since IS NULL AND route.last_success_at >= %(noted_since)s AND route.is_proven, FALSE)
    """,
    "is_route_proven": "coalesce(route.is_proven, FALSE)",
}
_SELECTED: LiteralString = ", ".join(_COLUMNS.values())
# From each of a few queues, as many notifications as the queue has capacity for. No other queue is read.
_TAKE_DUE: LiteralString = f"""
    WITH head AS MATERIALIZED (
        SELECT queue.id, queue.capacity
        FROM unnest(%(queue_ids)b::integer[], %(budgets)b::integer[]) AS queue (id, capacity)
        CROSS JOIN LATERAL (
            SELECT FROM notifications_opennotification
            WHERE queue_id = queue.id AND {DUE} ORDER BY due_at LIMIT 1
        ) AS first
        LIMIT %(queues_at_once)s
    )
    SELECT {_SELECTED}
    FROM head CROSS JOIN LATERAL (
        SELECT * FROM notifications_opennotification WHERE queue_id = head.id AND {DUE}
        ORDER BY due_at LIMIT head.capacity FOR UPDATE SKIP LOCKED
    ) AS n
    LEFT JOIN registrations_route AS route ON route.id = n.route_id
    LIMIT %(limit)s
"""
_TAKE_EXPIRED: LiteralString = f"""
    SELECT {_SELECTED}
    FROM (SELECT * {EXPIRED} ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED) AS n
    LEFT JOIN registrations_route AS route ON route.id = n.route_id
"""
# The worker of a claim that is due has died. Its attempt, which may have reached the device, is written before any
# other decision about the notification.
_WRITE_LOST: LiteralString = f"""
    WITH lost AS (
        UPDATE notifications_opennotification
        SET state = '{State.AMBIGUOUS}', due_at = %(now)s, ambiguous_count = ambiguous_count + 1
        WHERE id = ANY (%(ids)b::bigint[]) RETURNING *
    )
    INSERT INTO notifications_endedattempt
        (id, notification_id, number, gateway, token_type, app_topic, is_probe, started_at, ended_at, outcome, code,
         is_guarded, late_code)
    SELECT attempt_id, id, attempt_count, gateway, token_type, app_topic, is_probe, claimed_at, %(now)s,
           '{Outcome.AMBIGUOUS}', '{WORKER_LOST}', FALSE, late_code
    FROM lost
"""
_of = partial(array_value, "%(ids)b::bigint[]", "n.id")
_MOVE = f"""
    UPDATE notifications_opennotification AS n SET queue_id = {_of("queue_ids", "integer")}
    WHERE n.id = ANY (%(ids)b::bigint[])
"""
_POSTPONE = f"""
    UPDATE notifications_opennotification SET due_at = %(at)s
    WHERE id = ANY (ARRAY(
        SELECT id FROM notifications_opennotification AS n
        WHERE n.id = ANY (%(ids)b::bigint[]) AND attempt_count = {_of("attempts", "integer")} FOR UPDATE SKIP LOCKED
    ))
"""
NOTED_FOR = timedelta(hours=1)


def claim(batch: Batch, limits: ConcurrencyLimits) -> Claimed:
    """Claim due notifications of open queues within the limits.

    After the commit of the batch the pushes may be sent, and `limits.keep` keeps their capacity.
    """
    known = queues.load().and_halted(limits.reach.halts())
    if known.is_drained:
        limits.note_crowded([])  # nothing is to be claimed, whatever the capacity
        return Claimed()
    sorting = _Sorting(batch, known, limits)
    claims = list(sorting.probes())
    left = batch.limit - len(batch.taken)
    # An unsorted notification takes capacity in its own queue.
    budgets = {queue_id: limits.backlog_budget(queue_id) for queue_id in known.open_ids} | {UNSORTED: left}
    taken = _take_due(batch, budgets, left)
    counts = Counter(due.queue_id for due in taken)
    limits.note_crowded([pk for pk, capacity in budgets.items() if pk != UNSORTED and counts[pk] >= capacity])
    alive = _close_what_needs_no_push(taken, now=batch.now)
    claims += sorting.sort(alive)
    sorting.write()
    # Notifications that could neither be sent nor moved nor closed would be found again at once.
    is_progress = bool(claims) or bool(sorting.moved) or len(alive) < len(taken)
    is_probe_next = bool(sorting.moved) and any(halt.may_be_probed(batch.now) for halt in known.halts)
    is_more_left = is_progress and (len(taken) == left or len(counts) == QUEUES_AT_ONCE or is_probe_next)
    return Claimed(_write(claims, now=batch.now), sorting.new_queues, is_more_left)


def close_expired(batch: Batch) -> None:
    """Close notifications that expired, also behind halts."""
    batch.taken = [_read(row) for row in fetch(_TAKE_EXPIRED, batch.values | {"noted_since": batch.now})]
    _close_what_needs_no_push(batch.taken, now=batch.now)


def postpone(taken: Sequence[Claim], *, now: datetime) -> None:
    """Let notifications that were taken be due a minute later, unless another worker has claimed them meanwhile."""
    rows = [(due.notification_id, due.attempt_number - 1) for due in taken]
    write_rows(_POSTPONE, ("ids", "attempts"), rows, at=now + timedelta(seconds=CONFIG_RETRY_SECONDS))


def _take_due(batch: Batch, budgets: dict[int, int], limit: int) -> list[Claim]:
    """Lock the due heads of some of these queues, of each as many as its capacity.

    The order is random, because the first ones are taken.
    """
    queue_ids = [queue_id for queue_id, capacity in budgets.items() if capacity]
    random.shuffle(queue_ids)
    values = {
        "limit": limit,
        "noted_since": batch.now - NOTED_FOR,
        "queues_at_once": QUEUES_AT_ONCE,
        "queue_ids": queue_ids,
        "budgets": [min(budgets[queue_id], limit) for queue_id in queue_ids],
    }
    taken = [_read(row) for row in fetch(_TAKE_DUE, batch.values | values)]
    batch.taken = [*batch.taken, *taken]
    return taken


def _read(row: Sequence[Any]) -> Claim:
    fields = dict(zip(_COLUMNS, row, strict=True))
    app = app_key(fields.pop("token_type"), fields.pop("app_topic"))
    return Claim(**fields, app=app, address=b"")


def _write_lost(ids: Sequence[int], *, now: datetime) -> None:
    """Make the pushes of dead workers ambiguous. They may have left."""
    if ids:
        write(_WRITE_LOST, {"ids": ids, "now": now})
        count(LEFT_BEHIND, {("pushes",): len(ids)})


def _close_what_needs_no_push(taken: Sequence[Claim], *, now: datetime) -> list[Claim]:
    """Close notifications that expired or have no address any more, and return the others. The attempts of dead workers
    are written before.
    """
    _write_lost([due.notification_id for due in taken if due.is_lost], now=now)
    ends = [(due, _end_without_push(due, now)) for due in taken]
    for state in (State.WITHDRAWN, State.DEAD_TOKEN, State.EXPIRED, State.UNCONFIRMED):
        end([due.notification_id for due, its_end in ends if its_end == state], state, now=now)
    return [due for due, its_end in ends if its_end is None]


def _end_without_push(due: Claim, now: datetime) -> Notification.State | None:
    if due.route_state is None:
        return State.WITHDRAWN
    if due.route_state == Route.State.DISABLED:
        return State.DEAD_TOKEN
    if due.expires_at <= now:
        return State.UNCONFIRMED if due.ambiguous_count else State.EXPIRED
    return None


class _Sorting:
    """The sorting of taken notifications: each is sent from, or left in, the queue that its route belongs to now.

    The route's token, its app or its proof may have changed since the notification was put into a queue.
    """

    def __init__(self, batch: Batch, known: Queues, limits: ConcurrencyLimits) -> None:
        self._batch, self._known, self._limits = batch, known, limits
        self._unreadable: list[Claim] = []
        self.moved: dict[int, int] = {}
        self.new_queues: set[QueueKey] = set()

    def sort(self, alive: Sequence[Claim]) -> Iterator[Claim]:
        """Yield the notifications that may be sent now. The others wait in their queues."""
        for due in alive:
            key = self._queue_of(due)
            if not self._known.covering(key):
                # An unsorted notification was in no queue, so it counts as fresh and not as backlog.
                slot = Slot(self._known.id_of(key), is_backlog=due.queue_id != UNSORTED)
                yield from self._prepared(due, key, slot)

    def _queue_of(self, due: Claim) -> QueueKey:
        """Return the queue of a notification, and note when it is stored with another one."""
        key = self._known.key(due.gateway, due.app, is_proven=due.is_route_proven)
        queue_id = self._known.id_of(key)
        if not queue_id:
            self.new_queues.add(key)
        elif queue_id != due.queue_id:
            self.moved[due.notification_id] = queue_id
        return key

    def _prepared(self, due: Claim, key: QueueKey, slot: Slot, *, is_probe: bool = False) -> Iterator[Claim]:
        """Yield the claim, unless the address cannot be read or there is no capacity."""
        address = open_address(due.address_encrypted, due.route_id)
        if address is None:
            self._unreadable.append(due)
        elif self._limits.enter(slot):
            yield replace(due, address=address, queue=key, slot=slot, started_at=self._batch.now, is_probe=is_probe)

    def write(self) -> None:
        """Move notifications that were in a wrong queue, and postpone those whose address cannot be read."""
        write_rows(_MOVE, ("ids", "queue_ids"), self.moved.items())
        postpone(self._unreadable, now=self._batch.now)

    def probes(self) -> Iterator[Claim]:
        """Yield one push for each halt that may be probed: one to a proven address, or else to any.

        A notification in a wrong queue is moved and not taken. So nobody can use up the probes with changed addresses.
        """
        for halt in self._known.halts:
            for is_proven in (True, False):
                if probe := next(self._probe(halt, is_proven=is_proven), None):
                    yield probe
                    break

    def _probe(self, halt: Halt, *, is_proven: bool) -> Iterator[Claim]:
        """Yield a push from the queues that may probe a halt now, if the fleet sends no other one."""
        rows = [row for row in self._known.rows.values() if row.key.is_proven == is_proven and halt.covers(row.key)]
        ids = [r.id for r in rows if all(each.may_be_probed(self._batch.now) for each in self._known.covering(r.key))]
        # Others than possible probes get the other half, so that a halt that cannot be probed stops no open queue.
        limit = (self._batch.limit - len(self._batch.taken) + 1) // 2
        taken = _take_due(self._batch, dict.fromkeys(ids, max(1, limit // len(ids))), limit) if ids and limit else []
        alive = _close_what_needs_no_push(taken, now=self._batch.now)
        right = [due for due in alive if self._known.id_of(self._queue_of(due)) == due.queue_id]
        if not right:
            return
        due = _choose_probe(right, self._known.halts)
        key, slot = self._queue_of(due), Slot(due.queue_id)
        if self._limits.has_capacity(slot):  # otherwise the probe is left to other processes
            self._limits.reach.note_try(key.gateway, now=self._batch.now)
            covering = [each for each in self._known.covering(key) if each.id]
            if halts.take_probe(covering, due.route_id, now=self._batch.now):
                yield from self._prepared(due, key, slot, is_probe=True)


def _choose_probe(found: Sequence[Claim], probed: Iterable[Halt]) -> Claim:
    """Return the oldest push to an address chosen at random, other than those that were ``probed`` if there is another.

    Otherwise an address that always fails, with many pushes that wait under many names, could keep a halt for long.
    """
    routes = Route.objects.filter(pk__in={halt.probed_route_id for halt in probed})
    oldest = {due.address_digest: due for due in sorted(found, key=attrgetter("due_at"), reverse=True)}
    others = oldest.keys() - set(routes.values_list("address_digest", flat=True))
    return oldest[random.choice(sorted(others or oldest))]  # noqa: S311 - guards nothing


def open_address(address_encrypted: bytes, route_id: int) -> bytes | None:
    """Return the decrypted address, or None when its key is no longer in the settings.

    It raises no error, because the other notifications of the batch must not wait for an operator.
    """
    try:
        return keyring().decrypt(Purpose.ADDRESS, address_encrypted)
    except DecryptionError:
        log.error("address_not_decryptable", route_id=route_id)  # noqa: TRY400 - nothing to trace
        return None


_CLAIM: LiteralString = f"""
    UPDATE notifications_opennotification AS n
    SET state = '{State.IN_FLIGHT}', due_at = %(lease_until)s, attempt_count = n.attempt_count + 1,
        attempt_id = nextval('notifications_endedattempt_id_seq'), claimed_at = %(now)s,
        gateway = {_of("gateways", "text")}, token_type = {_of("token_types", "smallint")},
        app_topic = {_of("app_topics", "text")}, is_probe = {_of("probes", "boolean")}, late_code = ''
    WHERE n.id = ANY (%(ids)b::bigint[])
    RETURNING n.id, n.attempt_id
"""


def _write(claims: Sequence[Claim], *, now: datetime) -> list[Claim]:
    if not claims:
        return []
    rows = [(c.notification_id, c.gateway, *c.app, c.is_probe) for c in claims]
    columns = ("ids", "gateways", "token_types", "app_topics", "probes")
    [written] = write_rows(_CLAIM, columns, rows, now=now, lease_until=lease_until(now))
    ids: dict[int, int] = dict(written.rows())
    keys = _source_keys(claims) if is_on() else {}
    return [replace(c, attempt_id=ids[c.notification_id], source_key=keys.get(c.request_id, b"")) for c in claims]


_FIND_SOURCE_KEYS = """
    SELECT id, source_key FROM notifications_notificationrequest WHERE id = ANY (%b::bigint[]) AND ended_on >= %b::date
"""


def _source_keys(claims: Sequence[Claim]) -> dict[int, bytes]:
    """Return the source keys of these requests by request id, for traces."""
    first = day_of(min(c.created_at for c in claims))
    return dict(fetch(_FIND_SOURCE_KEYS, [list({c.request_id for c in claims}), first]))
