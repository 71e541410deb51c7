"""Queues: the pushes that are sent together, and whether they are sent at all.

    notification ──belongs to──▶ queue (gateway, platform, app, proven or not) ◀──covers── halt (`halts`)

A queue is open when no halt covers it. A halt changes no notification: waiting rows stay as they are, so that halting
and resuming cost the same with ten waiting rows or ten million.

Each row carries the id of its queue. The process that stores the row takes the id from the queues that it has read. A
claim moves a row whose id is not right any more, or that was never sorted (0, a queue that is always open).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from typing import LiteralString, NamedTuple

from django.db.models import QuerySet

from kit.db.base import Rows, Statement, fetch, write
from notifications.messages import AppKey, QueueKey
from notifications.models import Channel, Halt, Notification, Queue

UNSORTED = 0
# The last success of an app is written at most this often. No reader needs it more exactly, and every worker writes it.
SUCCESS_NOTED_EVERY = timedelta(minutes=1)
# As often, the last delivery of a gateway on a platform. It is shorter than the pause between two attempts.
DELIVERY_NOTED_EVERY = timedelta(seconds=5)
State = Notification.State
# The first attempt is due at once, even where this process's clock is up to 5 seconds behind that of the accepting
# worker. Any other notification is due at its `due_at`. One in flight that is due was claimed by a worker that died.
DUE: LiteralString = f"""due_at <= %(now)s + interval '5 seconds' AND due_at >= %(nothing_before)s
        AND (state = '{State.PENDING}' AND NOT is_wake_up OR due_at <= %(now)s)"""
# The condition that a halt covers a queue, in SQL. `Halt.covers` is the same in Python.
COVERS: LiteralString = f"""halt.ended_at IS NULL AND (halt.kind = '{Halt.Kind.DRAINED}'
        OR halt.kind = '{Halt.Kind.UNREACHABLE}' AND halt.gateway = queue.gateway
        OR halt.kind IN ('{Halt.Kind.PAUSED}', '{Halt.Kind.TRIPPED}')
            AND halt.token_type = queue.token_type AND halt.app_topic = queue.app_topic)"""
OPEN_QUEUES: LiteralString = f"""
    SELECT 0 AS id WHERE NOT EXISTS (
        SELECT FROM notifications_halt WHERE kind = '{Halt.Kind.DRAINED}' AND ended_at IS NULL
    )
    UNION ALL SELECT queue.id FROM notifications_queue AS queue
    WHERE NOT EXISTS (SELECT FROM notifications_halt AS halt WHERE {COVERS})
"""
# Something is due in an open queue, or a halt may be probed. Each queue is read by itself (LATERAL, LIMIT), so that no
# rows behind halts are read. PostgreSQL would otherwise read everything due while its statistics are older than a
# flood.
IS_DUE: LiteralString = f"""
    SELECT FROM ({OPEN_QUEUES}) AS open CROSS JOIN LATERAL (
        SELECT FROM notifications_opennotification
        WHERE queue_id = open.id AND {DUE} ORDER BY due_at LIMIT 1
    ) AS first
    UNION ALL SELECT FROM notifications_halt WHERE next_probe_at <= %(now)s AND ended_at IS NULL
"""


# Halted queues are included: their notifications are due when the halt ends.
OLDEST_DUE: LiteralString = f"""
    SELECT min(due_at) FROM (SELECT {UNSORTED} AS id UNION ALL SELECT id FROM notifications_queue) AS queue
    CROSS JOIN LATERAL (
        SELECT due_at FROM notifications_opennotification
        WHERE queue_id = queue.id AND due_at >= %(nothing_before)s AND due_at <= %(now)s ORDER BY due_at LIMIT 1
    ) AS first
"""


class QueueRow(NamedTuple):
    """A queue, as it was read a moment ago. Queue 0 has no row."""

    id: int
    key: QueueKey
    waiting_count: int
    counted_at: datetime | None
    delivered_at: datetime | None


@dataclass(frozen=True)
class Queues:
    """All queues, the halts that may cover them, and the apps with a delivery, each with the time of its last one.

    ``distrusted`` are the apps whose dead tokens are not believed to be dead (`breakers`). There are at most four
    queues for each app and gateway.
    """

    rows: Mapping[QueueKey, QueueRow] = field(default_factory=dict)
    halts: Sequence[Halt] = ()
    delivered: Mapping[AppKey, datetime] = field(default_factory=dict)
    distrusted: frozenset[AppKey] = frozenset()

    def and_halted(self, own: Sequence[Halt]) -> "Queues":
        """Return the same queues, with the halts of this process alone."""
        return replace(self, halts=[*self.halts, *own]) if own else self

    @cached_property
    def is_drained(self) -> bool:
        return any(halt.kind == Halt.Kind.DRAINED for halt in self.halts)

    @cached_property
    def unreachable(self) -> frozenset[str]:
        """Return the names of the gateways that cannot be reached."""
        return frozenset(halt.gateway for halt in self.halts if halt.kind == Halt.Kind.UNREACHABLE)

    @cached_property
    def tripped(self) -> frozenset[AppKey]:
        """Return the apps that a breaker stopped."""
        return frozenset(
            AppKey(halt.token_type or 0, halt.app_topic or "") for halt in self.halts if halt.kind == Halt.Kind.TRIPPED
        )

    @cached_property
    def open_ids(self) -> frozenset[int]:
        """Return the numbers of the queues that are open, queue 0 among them."""
        if self.is_drained:
            return frozenset()
        return frozenset({UNSORTED, *(row.id for row in self.rows.values() if not self.covering(row.key))})

    def key(self, gateway: str, app: AppKey, *, is_proven: bool) -> QueueKey:
        """Return the queue of a push. All apps of a platform that nothing was delivered to yet share one."""
        if app in self.delivered:
            return QueueKey(gateway, app.token_type, app.app_topic, is_proven)
        return QueueKey(gateway, app.token_type, None, is_proven=False)

    def id_of(self, key: QueueKey) -> int:
        """Return the id of a queue, or 0 while it has no row."""
        row = self.rows.get(key)
        return row.id if row else UNSORTED

    def delivered_at(self, gateway: str, token_type: int) -> datetime | None:
        """Return when a gateway last delivered something on a platform, or None if it never did."""
        on_it = [row for row in self.rows.values() if row.key[:2] == (gateway, token_type)]
        return max((row.delivered_at for row in on_it if row.delivered_at), default=None)

    def covering(self, key: QueueKey) -> list[Halt]:
        """Return the halts that cover a queue. It is open when there are none."""
        return [halt for halt in self.halts if halt.covers(key)]


_LOAD = """
    SELECT 'queue', id::bigint, gateway, token_type, app_topic, is_proven, waiting_count, counted_at, delivered_at
    FROM notifications_queue
    UNION ALL SELECT kind, id, gateway, token_type, app_topic, NULL, probed_route_id, next_probe_at, NULL
    FROM notifications_halt WHERE ended_at IS NULL
    UNION ALL SELECT 'app', NULL, '', token_type, app_topic, deaths_distrusted_since IS NOT NULL, NULL, last_success_at,
        NULL
    FROM notifications_channel
"""
ALL: Statement = _LOAD, ()


def load() -> Queues:
    """Read all queues, halts and apps."""
    return read_queues(fetch(*ALL))


def read_queues(found: Rows) -> Queues:
    """Return the queues, halts and apps in the rows of the statement `ALL`."""
    rows: dict[QueueKey, QueueRow] = {}
    halts: list[Halt] = []
    delivered: dict[AppKey, datetime] = {}
    distrusted: set[AppKey] = set()
    for kind, pk, gateway, token_type, app_topic, is_so, number, at, delivered_at in found:
        if kind == "queue":
            key = QueueKey(gateway, token_type, app_topic, is_so)
            rows[key] = QueueRow(pk, key, number, at, delivered_at)
        elif kind == "app":
            delivered[app := AppKey(token_type, app_topic)] = at
            distrusted |= {app} if is_so else set()
        else:
            subject = {"kind": kind, "gateway": gateway, "token_type": token_type, "app_topic": app_topic}
            halts.append(Halt(id=pk, **subject, next_probe_at=at, probed_route_id=number))
    return Queues(rows, sorted(halts, key=attrgetter("id")), delivered, frozenset(distrusted))


_CREATE = """
    INSERT INTO notifications_queue (gateway, token_type, app_topic, is_proven)
    SELECT * FROM unnest(%b::text[], %b::smallint[], %b::text[], %b::boolean[]) AS new (gateway, kind, topic, proven)
    ORDER BY gateway, kind, topic, proven
    ON CONFLICT (gateway, token_type, app_topic, is_proven) DO NOTHING
"""


def create(keys: Collection[QueueKey]) -> None:
    """Insert these queues, unless they exist, so that they have ids.

    It does not belong into the transaction of a batch: another worker that inserts the same queue would wait for it.
    """
    if keys:
        gateways, token_types, app_topics, proven = zip(*keys, strict=True)
        write(_CREATE, [list(gateways), list(token_types), list(app_topics), list(proven)])


def note_success(apps: Iterable[AppKey], known: Queues, *, now: datetime) -> None:
    """Write the time of a delivery to these apps, unless a recent one is stored. Mostly nothing is written."""
    stale = [app for app in sorted(set(apps)) if _is_older(known.delivered.get(app), now - SUCCESS_NOTED_EVERY)]
    new = [Channel(**app._asdict(), last_success_at=now) for app in stale if app not in known.delivered]
    Channel.objects.bulk_create(new, ignore_conflicts=True)
    for app in stale:
        unlocked(app).update(last_success_at=now)


def unlocked(app: AppKey) -> "QuerySet[Channel]":
    """Return the row of an app, or nothing while another session has it locked.

    All results of the app would wait for that lock, and what is written there can be written later.
    """
    free = Channel.objects.select_for_update(skip_locked=True, no_key=True).filter(**app._asdict())
    return Channel.objects.filter(pk__in=free.values("pk"))


def _is_older(at: datetime | None, than: datetime) -> bool:
    return at is None or at <= than


def note_delivery(keys: Iterable[QueueKey], known: Queues, *, now: datetime) -> None:
    """Write the time of a delivery from these queues, unless a recent one of its gateway and platform is stored."""
    by_platform = {key[:2]: known.id_of(key) for key in sorted(keys, key=known.id_of)}
    stale = [pk for at, pk in by_platform.items() if _is_older(known.delivered_at(*at), now - DELIVERY_NOTED_EVERY)]
    if any(stale):
        # Nobody waits for the row of a queue. Another session that has it locked may be noting a delivery, too.
        free = Queue.objects.select_for_update(skip_locked=True, no_key=True).filter(pk__in=stale)
        Queue.objects.filter(pk__in=free.values("pk")).update(delivered_at=now)


# What waits is due by then, unless it was postponed. The end of a push that a worker is sending is left to that worker
# while its lease lasts.
_EXPIRED: LiteralString = """
    FROM notifications_opennotification WHERE expires_at >= %(nothing_before)s AND expires_at <= %(now)s
"""
EXPIRED: LiteralString = f"{_EXPIRED} AND due_at <= %(now)s"
IS_EXPIRED: LiteralString = f"SELECT FROM (SELECT expires_at {EXPIRED} ORDER BY expires_at LIMIT 1) AS first"
OLDEST_EXPIRY: LiteralString = f"SELECT min(expires_at) {_EXPIRED}"
