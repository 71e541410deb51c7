"""Claiming: who sends what, with the attempt written before anything is sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog
from django.db import transaction
from django.db.models import F

from measuring.batches import observe
from notifications import channels
from notifications.delivery.lanes import Lanes, lane_of
from notifications.delivery.rows import Due, NewAttempt, insert_attempts, lock_due
from notifications.messages import ChannelKey, Push, channel_key
from notifications.metrics import DISPATCH_SECONDS
from notifications.models import Channel, Notification
from notifications.policy import CONFIG_RETRY_SECONDS
from notifications.transitions import OVER, move
from registrations.encryption import DecryptionError, Purpose
from registrations.keyring import keyring
from registrations.models import Route

log = structlog.get_logger(__name__)
State = Notification.State


@dataclass(frozen=True, slots=True)
class Claim:
    """A notification that this worker alone sends, until its lease ends."""

    notification_id: int
    request_id: int
    route_id: int
    route_generation: int
    attempt_id: int
    ambiguous_count: int
    expires_at: datetime
    push: Push
    channel: ChannelKey
    lane: ChannelKey
    is_probe: bool = False  # of a tripped channel: a success closes its breaker


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a batch. Notifications without room or with a halted channel are left as they were."""

    claims: list[Claim] = field(default_factory=list)
    crowded_ids: list[int] = field(default_factory=list)
    crowded_lanes: set[ChannelKey] = field(default_factory=set)
    halted_ids: list[int] = field(default_factory=list)


class _Taken(NamedTuple):
    due: Due
    channel: ChannelKey
    lane: ChannelKey
    device_token: str
    is_probe: bool


def claim(
    notification_ids: Sequence[int], *, gateway_name: str, now: datetime, lease: timedelta, lanes: Lanes
) -> Claimed:
    """Take the notifications that are due, as far as their channels have room, and write their attempts."""
    entered: list[ChannelKey] = []
    try:
        with transaction.atomic():
            alive = _close_what_needs_no_push(lock_due(notification_ids, now=now), now=now)
            claimed = Claimed()
            taken = list(_take(alive, claimed, lanes, entered, now=now))
            claimed.claims.extend(_write(taken, gateway_name, now=now, lease=lease))
            return claimed
    except BaseException:
        lanes.leave(entered)
        raise


def _close_what_needs_no_push(locked: Sequence[Due], *, now: datetime) -> list[Due]:
    """Those that remain."""
    _close([due for due in locked if due.route_state is None], State.WITHDRAWN, now=now)
    _close([due for due in locked if due.route_state == Route.State.DISABLED], State.DEAD_TOKEN, now=now)
    active = [due for due in locked if due.route_state == Route.State.ACTIVE]
    _close([due for due in active if due.expires_at <= now], State.EXPIRED, now=now)
    return [due for due in active if due.expires_at > now]


def _close(over: Sequence[Due], state: Notification.State, *, now: datetime) -> None:
    if over:
        move(Notification.objects.filter(pk__in=_ids(over)), state, finished_at=now, **OVER)


def _ids(several: Sequence[Due]) -> list[int]:
    return [due.notification_id for due in several]


def _take(
    alive: Sequence[Due], claimed: Claimed, lanes: Lanes, entered: list[ChannelKey], *, now: datetime
) -> Iterator[_Taken]:
    rows = channels.load([channel_key(due.token_type, due.apn_topic) for due in alive]) if alive else {}
    halted = {key: row for key, row in rows.items() if row.state != Channel.State.RUNNING}
    proven = {key for key, row in rows.items() if row.last_success_at}
    unreadable = []
    for due in alive:
        key = channel_key(due.token_type, due.apn_topic)
        lane = lane_of(key, proven)
        is_probe = key in halted and channels.take_probe(halted[key], now=now)
        if key in halted and not is_probe:
            claimed.halted_ids.append(due.notification_id)
        elif (device_token := _device_token(due)) is None:
            unreadable.append(due.notification_id)
        elif not lanes.enter(lane):
            claimed.crowded_ids.append(due.notification_id)
            claimed.crowded_lanes.add(lane)
        else:
            entered.append(lane)
            yield _Taken(due, key, lane, device_token, is_probe)
    _postpone(unreadable, now=now)


def _device_token(due: Due) -> str | None:
    """None when its key was taken out of the settings: nobody else's notification may wait for an operator."""
    try:
        return keyring().decrypt(Purpose.DEVICE_TOKEN, due.device_token_encrypted).decode()
    except DecryptionError:
        log.error("device_token_not_decryptable", route_id=due.route_id)  # noqa: TRY400 - nothing to trace
        return None


def _postpone(notification_ids: Sequence[int], *, now: datetime) -> None:
    if notification_ids:
        next_attempt_at = now + timedelta(seconds=CONFIG_RETRY_SECONDS)
        unreadable = Notification.objects.filter(pk__in=notification_ids)
        move(unreadable, State.RETRYING, next_attempt_at=next_attempt_at, enqueued_at=None)


def _write(taken: Sequence[_Taken], gateway_name: str, *, now: datetime, lease: timedelta) -> list[Claim]:
    if not taken:
        return []
    move(
        Notification.objects.filter(pk__in=[t.due.notification_id for t in taken]),
        State.IN_FLIGHT,
        lease_until=now + lease,
        attempt_count=F("attempt_count") + 1,
        next_attempt_at=None,
    )
    first = [t.due for t in taken if not t.due.attempt_count]
    observe(DISPATCH_SECONDS, ((now - due.created_at).total_seconds() for due in first))
    attempts = [NewAttempt(t.due.notification_id, t.due.attempt_count + 1, t.channel) for t in taken]
    ids = insert_attempts(attempts, gateway=gateway_name, started_at=now)
    return [_claim(t, attempt_id) for t, attempt_id in zip(taken, ids, strict=True)]


def _claim(taken: _Taken, attempt_id: int) -> Claim:
    due = taken.due
    return Claim(
        notification_id=due.notification_id,
        request_id=due.request_id,
        route_id=due.route_id,
        route_generation=due.route_generation,
        attempt_id=attempt_id,
        ambiguous_count=due.ambiguous_count,
        expires_at=due.expires_at,
        push=_push(due, taken.device_token),
        channel=taken.channel,
        lane=taken.lane,
        is_probe=taken.is_probe,
    )


def _push(due: Due, device_token: str) -> Push:
    return Push(
        notification_id=due.notification_id,
        attempt_number=due.attempt_count + 1,
        token_type=due.token_type,
        device_token=device_token,
        apn_topic=due.apn_topic,
        type=due.type,
        public_key_hash=due.public_key_hash,
        chat_id=due.chat_id or b"",
        message=due.message or b"",
        collapse_id=(due.dedup_key or due.notification_id.to_bytes(16)).hex()[:32],
    )
