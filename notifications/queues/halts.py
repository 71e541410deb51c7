"""Halts: reasons not to send from queues, begun and ended by operators, by breakers, and by the gateways' results.

    kind          covers                  begun by                              ended by
    drained       every queue             an operator                           an operator
    unreachable   queues of a gateway     pushes that no process gets there     a probe that reaches it
    paused        queues of an app        an operator                           an operator
    tripped       queues of an app        a breaker, or an operator             a probe that is answered, an operator

The end of one halt never ends another. None of these functions waits for the lock of a notification. A halt that ends
by itself is probed. The whole fleet sends one probe in each pause: a push to a proven address if one waits, and to
another address than the last if there is one.
"""

import os
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import structlog
from django.conf import settings

from kit.batches.batch import wake as wake_workers
from kit.db.base import fetch, write
from kit.telemetry import count
from notifications import gateways
from notifications.messages import CUT_OFF, TIMEOUT, AppKey
from notifications.metrics import CHANNEL_TRIPS, GATEWAY_OUTAGES
from notifications.models import Channel, Halt, Notification
from notifications.policy import GATEWAY_FAILED
from registrations.messages import platform_of

log = structlog.get_logger(__name__)
Kind = Halt.Kind
# Halts of the other kinds are not probed.
PROBED = (Kind.TRIPPED, Kind.UNREACHABLE)
PROBE_PAUSE = timedelta(seconds=5)
# Ambiguous pushes that are due within this time are not brought forward, so that an app that fails again and again does
# not ring a phone each time.
SOON_SECONDS = 60
# A gateway is halted when a process has tried for this long and no process had contact.
TRIED_FOR = timedelta(seconds=5)
# Pause between two tries of a process that is cut off. It is a second longer than the pause between two probes of a
# halt, so that every other process may take the next probe.
TRY_PAUSE = timedelta(seconds=6)


# Begin and end --------------------------------------------------------------------------------------------------------


def drain() -> Halt | None:
    """Return the halt that covers the whole server, or None while delivery runs."""
    return Halt.objects.in_force().filter(kind=Kind.DRAINED).first()


_BEGIN = """
    INSERT INTO notifications_halt (kind, gateway, token_type, app_topic, since, reason, by, next_probe_at)
    VALUES (%s, %s, %s::smallint, %s, %s, %s, %s, %s::timestamptz)
    ON CONFLICT (kind, gateway, token_type, app_topic) WHERE ended_at IS NULL DO NOTHING RETURNING id
"""


def begin(kind: Halt.Kind, subject: AppKey | str = "", *, by: str = "", reason: str = "", now: datetime) -> bool:
    """Begin a halt of the server, of a gateway (its name) or of an app. Return whether this call did it.

    One that the server begins itself is an error.
    """
    columns, next_probe_at = _columns(subject), now + PROBE_PAUSE if kind in PROBED else None
    if not fetch(_BEGIN, [str(kind), *columns.values(), now, reason, by, next_probe_at]):
        return False
    if by:
        log.warning("halt_begun", kind=str(kind), **columns)
        return True
    log.error("halt_begun", kind=str(kind), **columns, reason=reason)
    if isinstance(subject, AppKey):
        count(CHANNEL_TRIPS, [(platform_of(subject.token_type),)])
    else:
        count(GATEWAY_OUTAGES, [(subject,)])
    return True


def end(kind: Halt.Kind, subject: AppKey | str = "", *, by: str = "", now: datetime) -> bool:
    """End a halt, and return whether it was in force. What waited is sent, unless another halt covers it.

    Ambiguous pushes of a tripped app have long pauses because of the fault that is over. They are due at once.
    """
    columns = _columns(subject)
    if not Halt.objects.in_force().filter(kind=kind, **columns).update(ended_at=now, ended_by=by):
        return False
    log.warning("halt_ended", kind=str(kind), **columns, by_operator=bool(by))
    if isinstance(subject, AppKey):
        Channel.objects.filter(**subject._asdict()).update(judged_from=now)
        if kind == Kind.TRIPPED:
            write(_BRING_FORWARD, {**subject._asdict(), "now": now})
    wake_workers()
    return True


def _columns(subject: AppKey | str) -> dict[str, Any]:
    if isinstance(subject, AppKey):
        return {"gateway": "", **subject._asdict()}
    return {"gateway": subject, "token_type": None, "app_topic": ""}


# Only pushes that were sent before have pauses, so the rows that wait for their first attempt are not read.
_BRING_FORWARD = f"""
    UPDATE notifications_opennotification SET due_at = %(now)s
    WHERE id = ANY (ARRAY(
        SELECT waiting.id FROM notifications_queue AS queue CROSS JOIN LATERAL (
            SELECT id FROM notifications_opennotification
            WHERE queue_id = queue.id AND state = '{Notification.State.AMBIGUOUS}'
                AND due_at > %(now)s + interval '{SOON_SECONDS} seconds'
            FOR UPDATE SKIP LOCKED
        ) AS waiting
        WHERE queue.token_type = %(token_type)s AND queue.app_topic = %(app_topic)s
    ))
"""


# Reach ----------------------------------------------------------------------------------------------------------------


# An attempt without a begin left no connection. One that began before counts only with an answer.
_HAS_CONTACT = f"""
    SELECT 1 FROM notifications_endedattempt
    WHERE started_at >= %(first)s AND gateway = %(gateway)s AND began_at IS NOT NULL AND ended_at >= %(since)s
        AND code <> '{GATEWAY_FAILED}' AND (began_at >= %(since)s OR code NOT IN ('{CUT_OFF}', '{TIMEOUT}'))
    ORDER BY started_at DESC LIMIT 1
"""


def has_contact(gateway: str, since: datetime) -> bool:
    """Return whether a push of any process reached this gateway, or was answered by it, since then."""
    first = since - timedelta(seconds=settings.DELIVERY_LEASE_SECONDS)  # no push takes longer
    return bool(fetch(_HAS_CONTACT, {"gateway": gateway, "since": since, "first": first}))


class Reach:
    """The gateways that this process cannot reach, each with the time since when and the time of the next try.

    What one process sees halts nothing but itself: it leaves its pushes to the others, and tries one in each pause. The
    others then have contact, or nobody has.
    """

    def __init__(self) -> None:
        self._since: dict[str, datetime] = {}
        self._next_try_at: dict[str, datetime] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def note_reached(self, gateways: Iterable[str]) -> None:
        """Note that these gateways were reached."""
        for gateway in gateways:
            self._since.pop(gateway, None)

    def note_unreached(self, gateway: str, *, now: datetime) -> datetime:
        """Note that a push did not reach its gateway, and return since when none did."""
        since = self._since.setdefault(gateway, now)
        self.note_try(gateway, now=now)
        return since

    def note_alone(self, gateway: str, *, now: datetime) -> None:
        """Note that others had contact since then, so that contact counts from now on. Operators see it."""
        self._since[gateway] = now
        name = f"process {os.getpid()} on {socket.gethostname()}"
        # In a thread, because a host without a way to the gateway may have none to Redis, and no batch waits for it.
        Thread(target=gateways.CUT_OFF.save, args=[name, gateway], daemon=True).start()

    def note_try(self, gateway: str, *, now: datetime) -> None:
        """Note that a push is sent to find out whether the gateway can be reached again."""
        self._next_try_at[gateway] = now + TRY_PAUSE

    def halts(self) -> list[Halt]:
        """Return what this process does not send, as halts without a row."""
        kind = Kind.UNREACHABLE
        return [Halt(kind=kind, gateway=each, next_probe_at=self._next_try_at[each]) for each in self._since]


# Probes ---------------------------------------------------------------------------------------------------------------

_LOCK_DUE = """
    SELECT id FROM notifications_halt
    WHERE id = ANY (%(ids)b::bigint[]) AND next_probe_at <= %(now)s AND ended_at IS NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
"""
_NEXT_PROBE = """
    UPDATE notifications_halt SET next_probe_at = %(at)s, probed_route_id = %(route_id)s
    WHERE id = ANY (%(ids)b::bigint[])
"""


def take_probe(covering: Sequence[Halt], route_id: int, *, now: datetime) -> bool:
    """Return whether the caller may send one push, to this route, that these halts cover. The fleet may send one in
    each pause.

    It never waits for a row: another worker that holds the row takes the probe.
    """
    ids = [halt.id for halt in covering]
    if len(fetch(_LOCK_DUE, {"ids": ids, "now": now})) < len(ids):
        return False
    write(_NEXT_PROBE, {"ids": ids, "at": now + PROBE_PAUSE, "route_id": route_id})
    return True
