"""Claiming: what a process claims it sends, and no other process does while the lease lasts.

The attempt is written before the push is sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from kit.db.statements import fetch
from kit.metrics.batches import observe
from kit.tracing.traces import is_on
from notifications import channels, outages
from notifications.channels import Channels
from notifications.delivery.lanes import Lanes, lane_of_push
from notifications.messages import ChannelKey, Push, channel_key
from notifications.metrics import DISPATCH_SECONDS
from notifications.models import Notification
from notifications.policy import CONFIG_RETRY_SECONDS
from notifications.transitions import OVER, move
from registrations.encryption import DecryptionError, Purpose
from registrations.keyring import keyring
from registrations.models import Route

log = structlog.get_logger(__name__)
State = Notification.State


@dataclass(frozen=True, slots=True)
class Claim:
    """A notification that this process alone sends, until its lease ends."""

    notification_id: int
    request_id: int
    route_id: int
    route_generation: int
    attempt_id: int
    ambiguous_count: int
    expires_at: datetime
    gateway: str
    address_digest: bytes  # of the address that the push goes to
    push: Push
    channel: ChannelKey
    lane: ChannelKey
    is_route_noted: bool = False  # its address had a success within the last hour, and no failure since
    is_route_proven: bool = False  # something was delivered to its address before
    # It probes a tripped channel, whose breaker a success closes, or a gateway that could not be reached.
    is_probe: bool = False
    # Of its request, only for traces: what is due later lacks it while nothing is traced.
    source_key: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of notifications that were due. Those of a full lane, a halted channel or an unreachable gateway are
    left as they were.
    """

    claims: list[Claim] = field(default_factory=list)
    halted_ids: list[int] = field(default_factory=list)
    is_more_left: bool = False


class Due(NamedTuple):
    """A notification that may be sent now, with its route. The route's columns are None when the recipient
    unregistered.
    """

    notification_id: int
    request_id: int
    type: int
    public_key_hash: bytes
    chat_id: bytes | None
    message: bytes | None
    collapse_id: bytes | None
    grade: str
    wake: bytes | None
    payload_dropped: bool
    dedup_key: bytes | None
    attempt_count: int
    ambiguous_count: int
    created_at: datetime
    expires_at: datetime
    route_id: int
    route_state: str | None
    route_generation: int
    token_type: int
    apn_topic: str
    address_encrypted: bytes
    gateway: str
    address_digest: bytes
    is_route_noted: bool
    is_route_proven: bool


@dataclass(frozen=True, slots=True)
class Claimable:
    """A due notification with everything that its push needs."""

    due: Due
    channel: ChannelKey
    lane: ChannelKey
    address: bytes = field(repr=False)
    is_probe: bool


# Full lanes are left out, so that one of them does not hide what waits behind it.
_TAKE_DUE = """
    SELECT n.id, n.request_id, n.type, n.public_key_hash, n.chat_id, n.message, n.collapse_id, n.grade, n.wake,
           n.payload_dropped, n.dedup_key,
           n.attempt_count, n.ambiguous_count, n.created_at, n.expires_at,
           route.id, route.state, route.generation, route.token_type, route.apn_topic, route.address_encrypted,
           route.gateway,
           route.address_digest,
           route.failing_since IS NULL AND route.last_success_at >= %(noted_since)s AND route.is_proven,
           route.is_proven
    FROM notifications_notification AS n
    LEFT JOIN registrations_route AS route ON route.id = n.route_id
    WHERE n.state IN ('pending', 'retrying', 'ambiguous')
        AND n.next_attempt_at <= %(now)s + interval '5 seconds'
        AND (n.state = 'pending' AND NOT n.is_wake_up OR n.next_attempt_at <= %(now)s)
        AND NOT EXISTS (SELECT FROM notifications_drain)
        AND (route.id IS NULL OR (
            NOT EXISTS (
                SELECT FROM unnest(%(full_types)b::smallint[], %(full_topics)b::text[]) AS lane (token_type, topic)
                WHERE lane.token_type = route.token_type
                    AND lane.topic = CASE WHEN route.is_proven THEN '' ELSE '(new) ' END
                        || CASE route.token_type WHEN 1 THEN route.apn_topic ELSE '' END
            ) AND (route.token_type <> ALL (%(crowded_types)b::smallint[]) OR EXISTS (
                SELECT FROM notifications_channel AS channel
                WHERE channel.token_type = route.token_type AND channel.last_success_at IS NOT NULL
                    AND channel.apn_topic = CASE route.token_type WHEN 1 THEN route.apn_topic ELSE '' END
            ))
        ))
    ORDER BY n.next_attempt_at LIMIT %(limit)s FOR UPDATE OF n SKIP LOCKED
"""
# The first attempt is due at once, even where the clock is behind that of the worker which accepted it, by 5 seconds at
# most. The condition is written, here as above, so that nothing of what is parked is read for it.
WAITS = """
    SELECT FROM notifications_notification
    WHERE state IN ('pending', 'retrying', 'ambiguous')
        AND next_attempt_at <= %(now)s + interval '5 seconds'
        AND (state = 'pending' AND NOT is_wake_up OR next_attempt_at <= %(now)s)
    UNION ALL SELECT FROM notifications_gatewayoutage WHERE next_probe_at <= %(now)s
"""
NOTED_FOR = timedelta(hours=1)


def claim(*, limit: int, now: datetime, lease: timedelta, lanes: Lanes) -> Claimed:
    """Take notifications that are due, as far as their lanes have room, and write their attempts.

    It belongs into the transaction of a turn: once that is committed, the pushes may be sent and the lanes `keep` their
    room.
    """
    known = channels.snapshot()
    if known.halted:
        channels.release_probes(now=now)
    if known.unreachable:
        outages.release_probes(now=now)
    taken = _take_due(limit, lanes, now=now)
    alive = _close_what_needs_no_push(taken, now=now)
    claimed = Claimed(is_more_left=len(taken) == limit)
    claimable = list(_choose(alive, claimed, lanes, known, now=now))
    claimed.claims.extend(_write(claimable, now=now, lease=lease))
    return claimed


def postpone_first(*, lanes: Lanes, now: datetime) -> None:
    """Put off the notification that `claim` takes first, because it cannot be claimed and must not stop the others."""
    next_attempt_at = now + timedelta(seconds=CONFIG_RETRY_SECONDS)
    ids = [due.notification_id for due in _take_due(1, lanes, now=now)]
    Notification.objects.filter(pk__in=ids).update(next_attempt_at=next_attempt_at)


def _take_due(limit: int, lanes: Lanes, *, now: datetime) -> list[Due]:
    full = lanes.pass_over_full()
    rows = fetch(
        _TAKE_DUE,
        {
            "now": now,
            "noted_since": now - NOTED_FOR,
            "limit": limit,
            "full_types": [lane.token_type for lane in full.channels],
            "full_topics": [lane.apn_topic for lane in full.channels],
            "crowded_types": full.unproven_platforms,
        },
    )
    return [Due._make(row) for row in rows]


def _close_what_needs_no_push(taken: Sequence[Due], *, now: datetime) -> list[Due]:
    """Close what has no address any more or came too late, and return the others."""
    _close([due for due in taken if due.route_state is None], State.WITHDRAWN, now=now)
    _close([due for due in taken if due.route_state == Route.State.DISABLED], State.DEAD_TOKEN, now=now)
    active = [due for due in taken if due.route_state == Route.State.ACTIVE]
    _close([due for due in active if due.expires_at <= now], State.EXPIRED, now=now)
    return [due for due in active if due.expires_at > now]


def _close(over: Sequence[Due], state: Notification.State, *, now: datetime) -> None:
    if over:
        move(Notification.objects.filter(pk__in=[due.notification_id for due in over]), state, finished_at=now, **OVER)


def _choose(
    alive: Sequence[Due], claimed: Claimed, lanes: Lanes, known: Channels, *, now: datetime
) -> Iterator[Claimable]:
    unreadable = []
    for due in alive:
        key = channel_key(due.token_type, due.apn_topic)
        lane = lane_of_push(key, known.proven, is_route_proven=due.is_route_proven)
        is_held_back = key in known.halted or due.gateway in known.unreachable
        is_probe = is_held_back and _take_probe(due, key, known, now=now)
        if is_held_back and not is_probe:
            claimed.halted_ids.append(due.notification_id)
        elif (address := open_address(due.address_encrypted, due.route_id)) is None:
            unreadable.append(due.notification_id)
        elif lanes.enter(lane):
            yield Claimable(due, key, lane, address, is_probe)
    _postpone(unreadable, now=now)


def _take_probe(due: Due, key: ChannelKey, known: Channels, *, now: datetime) -> bool:
    """Return whether this one may go though its gateway, or its channel, is not sent to otherwise."""
    if due.gateway in known.unreachable and not outages.take_probe(due.gateway, now=now):
        return False
    return key not in known.halted or channels.take_probe(key, now=now)


def open_address(address_encrypted: bytes, route_id: int) -> bytes | None:
    """Return the decrypted address, or None when its key was taken out of the settings.

    It raises no error, because the other notifications of the batch must not wait for an operator.
    """
    try:
        return keyring().decrypt(Purpose.ADDRESS, address_encrypted)
    except DecryptionError:
        log.error("address_not_decryptable", route_id=route_id)  # noqa: TRY400 - nothing to trace
        return None


def _postpone(notification_ids: Sequence[int], *, now: datetime) -> None:
    if notification_ids:
        next_attempt_at = now + timedelta(seconds=CONFIG_RETRY_SECONDS)
        move(Notification.objects.filter(pk__in=notification_ids), State.RETRYING, next_attempt_at=next_attempt_at)


_CLAIM = """
    UPDATE notifications_notification AS n
    SET state = 'in_flight', lease_until = %(lease_until)s, attempt_count = n.attempt_count + 1, next_attempt_at = NULL
    FROM unnest(%(ids)b::bigint[]) AS claimed (id)
    WHERE n.id = claimed.id AND n.state IN ('pending', 'retrying', 'ambiguous')
"""
_INSERT_ATTEMPTS = """
    INSERT INTO notifications_attempt
        (notification_id, number, token_type, apn_topic, gateway, started_at, code, is_guarded)
    SELECT *, %s, '', FALSE FROM unnest(%b::bigint[], %b::integer[], %b::smallint[], %b::text[], %b::text[])
    RETURNING notification_id, id
"""


def _write(claimable: Sequence[Claimable], *, now: datetime, lease: timedelta) -> list[Claim]:
    if not claimable:
        return []
    fetch(_CLAIM, {"lease_until": now + lease, "ids": [c.due.notification_id for c in claimable]})
    attempts = fetch(
        _INSERT_ATTEMPTS,
        [
            now,
            [c.due.notification_id for c in claimable],
            [c.due.attempt_count + 1 for c in claimable],
            [c.channel.token_type for c in claimable],
            [c.channel.apn_topic for c in claimable],
            [c.due.gateway for c in claimable],
        ],
    )
    ids: dict[int, int] = dict(attempts)
    keys = _source_keys(claimable) if is_on() else {}
    first = [c.due for c in claimable if not c.due.attempt_count]
    waited = ((now - due.created_at).total_seconds() for due in first)
    observe(DISPATCH_SECONDS, waited, of=(keys.get(due.request_id, b"") for due in first))
    return [_claim(c, ids[c.due.notification_id], keys.get(c.due.request_id, b"")) for c in claimable]


_FIND_SOURCE_KEYS = "SELECT id, source_key FROM notifications_notificationrequest WHERE id = ANY (%b::bigint[])"


def _source_keys(claimable: Sequence[Claimable]) -> dict[int, bytes]:
    """Return by which keys the requests are traced."""
    return dict(fetch(_FIND_SOURCE_KEYS, [list({c.due.request_id for c in claimable})]))


def _claim(claimable: Claimable, attempt_id: int, source_key: bytes) -> Claim:
    due = claimable.due
    return Claim(
        notification_id=due.notification_id,
        request_id=due.request_id,
        route_id=due.route_id,
        route_generation=due.route_generation,
        attempt_id=attempt_id,
        ambiguous_count=due.ambiguous_count,
        expires_at=due.expires_at,
        gateway=due.gateway,
        address_digest=due.address_digest,
        push=_push(due, claimable.channel, claimable.address),
        channel=claimable.channel,
        lane=claimable.lane,
        is_route_noted=bool(due.is_route_noted),
        is_route_proven=due.is_route_proven,
        is_probe=claimable.is_probe,
        source_key=source_key,
    )


def _push(due: Due, channel: ChannelKey, address: bytes) -> Push:
    return Push(
        notification_id=due.notification_id,
        attempt_number=due.attempt_count + 1,
        channel=channel,
        address=address,
        type=due.type,
        public_key_hash=due.public_key_hash,
        chat_id=due.chat_id or b"",
        message=due.message or b"",
        collapse_id=(due.collapse_id or collapse_id(due.dedup_key, due.notification_id)).hex(),
        grade=due.grade,
        wake=due.wake or b"",
        is_payload_dropped=due.payload_dropped,
        expires_at=due.expires_at if due.grade else None,
    )


def collapse_id(dedup_key: bytes | None, notification_id: int) -> bytes:
    """Return the 16 bytes under which the device replaces an earlier push of the same notification.

    They are stored with the notification, because the dedup key is released after a day.
    """
    return (dedup_key or notification_id.to_bytes(16))[:16]
