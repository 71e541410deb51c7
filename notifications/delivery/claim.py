"""Claiming: who sends what, with the attempt written before anything is sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, Q

from measuring.batches import observe
from notifications import channels
from notifications.delivery.lanes import Lanes
from notifications.messages import ChannelKey, Push, channel_key
from notifications.metrics import DISPATCH_SECONDS
from notifications.models import Attempt, Notification
from notifications.policy import CONFIG_RETRY_SECONDS
from notifications.transitions import DUE, OVER, move
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
    is_probe: bool = False  # of a tripped channel: a success closes its breaker


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a batch. Notifications without room or with a halted channel are left as they were."""

    claims: list[Claim] = field(default_factory=list)
    crowded_ids: list[int] = field(default_factory=list)
    crowded_channels: set[ChannelKey] = field(default_factory=set)
    halted_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Taken:
    notification: Notification
    route: Route
    channel: ChannelKey
    device_token: str
    is_probe: bool


def claim(
    notification_ids: Sequence[int], *, gateway_name: str, now: datetime, lease: timedelta, lanes: Lanes
) -> Claimed:
    """Take the notifications that are due, as far as their channels have room, and write their attempts."""
    entered: list[ChannelKey] = []
    try:
        with transaction.atomic():
            alive = _close_what_needs_no_push(_lock_due(notification_ids, now=now), now=now)
            claimed = Claimed()
            taken = list(_take(alive, claimed, lanes, entered, now=now))
            claimed.claims.extend(_write(taken, gateway_name, now=now, lease=lease))
            return claimed
    except BaseException:
        for channel in entered:
            lanes.leave(channel)
        raise


def _lock_due(notification_ids: Sequence[int], *, now: datetime) -> list[Notification]:
    return list(
        Notification.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("route")
        .filter(pk__in=notification_ids, state__in=DUE)
        # The first attempt is due at once, also where the clock is behind that of the worker which accepted it.
        .filter(Q(state=State.PENDING) | Q(next_attempt_at__lte=now))
        .order_by("pk")
    )


def _close_what_needs_no_push(due: Sequence[Notification], *, now: datetime) -> list[tuple[Notification, Route]]:
    """Those that remain, with their routes."""
    _close([n.pk for n in due if n.route is None], State.WITHDRAWN, now=now)
    _close([n.pk for n in due if n.route and n.route.state == Route.State.DISABLED], State.DEAD_TOKEN, now=now)
    active = [(n, n.route) for n in due if n.route and n.route.state == Route.State.ACTIVE]
    _close([n.pk for n, _ in active if n.expires_at <= now], State.EXPIRED, now=now)
    return [(n, route) for n, route in active if n.expires_at > now]


def _close(notification_ids: Sequence[int], state: Notification.State, *, now: datetime) -> None:
    if notification_ids:
        move(Notification.objects.filter(pk__in=notification_ids), state, finished_at=now, **OVER)


def _take(
    alive: Sequence[tuple[Notification, Route]],
    claimed: Claimed,
    lanes: Lanes,
    entered: list[ChannelKey],
    *,
    now: datetime,
) -> Iterator[_Taken]:
    halted = channels.load_halted() if alive else {}
    unreadable = []
    for notification, route in alive:
        key = channel_key(route.token_type, route.apn_topic)
        is_probe = key in halted and channels.take_probe(halted[key], now=now)
        if key in halted and not is_probe:
            claimed.halted_ids.append(notification.pk)
        elif (device_token := _device_token(route)) is None:
            unreadable.append(notification.pk)
        elif not lanes.enter(key):
            claimed.crowded_ids.append(notification.pk)
            claimed.crowded_channels.add(key)
        else:
            entered.append(key)
            yield _Taken(notification, route, key, device_token, is_probe)
    _postpone(unreadable, now=now)


def _device_token(route: Route) -> str | None:
    """None when its key was taken out of the settings: nobody else's notification may wait for an operator."""
    try:
        return keyring().decrypt(Purpose.DEVICE_TOKEN, route.device_token_encrypted).decode()
    except DecryptionError:
        log.error("device_token_not_decryptable", route_id=route.pk)  # noqa: TRY400 - nothing to trace
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
        Notification.objects.filter(pk__in=[t.notification.pk for t in taken]),
        State.IN_FLIGHT,
        lease_until=now + lease,
        attempt_count=F("attempt_count") + 1,
        next_attempt_at=None,
    )
    observe(DISPATCH_SECONDS, (_age_seconds(t.notification, now) for t in taken if not t.notification.attempt_count))
    attempts = Attempt.objects.bulk_create(_new_attempt(t, gateway_name, now=now) for t in taken)
    return [_claim(t, attempt) for t, attempt in zip(taken, attempts, strict=True)]


def _age_seconds(notification: Notification, now: datetime) -> float:
    return (now - notification.created_at).total_seconds()


def _new_attempt(taken: _Taken, gateway_name: str, *, now: datetime) -> Attempt:
    return Attempt(
        notification=taken.notification,
        number=taken.notification.attempt_count + 1,
        gateway=gateway_name,
        token_type=taken.channel.token_type,
        apn_topic=taken.channel.apn_topic,
        started_at=now,
    )


def _claim(taken: _Taken, attempt: Attempt) -> Claim:
    notification, route = taken.notification, taken.route
    return Claim(
        notification_id=notification.pk,
        request_id=notification.request_id,
        route_id=route.pk,
        route_generation=route.generation,
        attempt_id=attempt.pk,
        ambiguous_count=notification.ambiguous_count,
        expires_at=notification.expires_at,
        push=_push(notification, route, taken.device_token, attempt.number),
        channel=taken.channel,
        is_probe=taken.is_probe,
    )


def _push(notification: Notification, route: Route, device_token: str, attempt_number: int) -> Push:
    return Push(
        notification_id=notification.pk,
        attempt_number=attempt_number,
        token_type=route.token_type,
        device_token=device_token,
        apn_topic=route.apn_topic,
        type=notification.type,
        public_key_hash=bytes(notification.public_key_hash),
        chat_id=bytes(notification.chat_id or b""),
        message=bytes(notification.message or b""),
        collapse_id=bytes(notification.dedup_key or notification.pk.to_bytes(16)).hex()[:32],
    )
