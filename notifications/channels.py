"""Channels: one app on one platform, which an operator pauses and a breaker trips.

A notification whose channel is halted is parked: it keeps its state and is next due when it expires, so that nothing
reads it before, unless the channel runs again. Locks go from the channel to its notifications, never back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.functions import Random

from kit.db.statements import fetch
from kit.metrics.batches import count
from notifications.messages import ChannelKey, platform
from notifications.metrics import CHANNEL_TRIPS
from notifications.models import Channel, Notification
from notifications.transitions import DUE
from registrations.messages import TokenType

log = structlog.get_logger(__name__)
State = Channel.State


class ChannelRow(NamedTuple):
    """The stored state of a channel, as it was read a moment ago."""

    token_type: int
    apn_topic: str
    state: str
    since: datetime
    next_probe_at: datetime | None
    last_success_at: datetime | None


# A channel without a row runs, and nothing has been delivered to it yet.
Known = Mapping[ChannelKey, ChannelRow]


@dataclass(frozen=True, slots=True)
class Channels:
    """The state of all channels at one moment. There are as many as there are apps, and some more that were tripped."""

    rows: Known
    proven: frozenset[ChannelKey]
    halted: frozenset[ChannelKey]
    is_draining: bool
    unreachable: frozenset[str]  # names of gateways


# The last success is written at most this often: nobody needs it more exactly, and every worker writes it.
SUCCESS_NOTED_EVERY = timedelta(minutes=1)
# How many channels may be tripped before anything was delivered to them.
MAX_UNPROVEN = 50
# Released notifications are spread over time, so that retries of other channels are not queued behind all of them.
RELEASED_PER_SECOND = 500


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator or a breaker did to a channel, for the log entry about it."""

    channel: ChannelKey
    before: str
    after: str
    released_count: int = 0

    @property
    def is_change(self) -> bool:
        return self.before != self.after


def pause(key: ChannelKey, *, by: str, why: str, now: datetime) -> Change:
    """Send nothing to this channel until somebody resumes it. Its notifications wait, at most their time to live."""
    return _change(key, State.PAUSED, start=[State.RUNNING, State.TRIPPED], by=by, reason=why, now=now)


def trip(key: ChannelKey, *, reason: str, by: str = "", now: datetime) -> Change:
    """Stop sending because it is useless or does harm, and probe now and then whether that is over."""
    change = _change(key, State.TRIPPED, start=[State.RUNNING], by=by, reason=reason, now=now)
    if change.is_change:
        log.error("channel_tripped", **key._asdict(), reason=reason)
    if change.is_change and not by:
        count(CHANNEL_TRIPS, [(platform(key.token_type),)])
    return change


def is_worth_a_row(key: ChannelKey) -> bool:
    """Return whether a channel may be stored.

    Apple refuses the app topics that strangers make up one by one. These must fill neither the console nor the log.
    """
    unproven = Channel.objects.filter(last_success_at__isnull=True)
    return unproven.count() < MAX_UNPROVEN or Channel.objects.filter(**key._asdict()).exists()


def resume(key: ChannelKey, *, by: str, why: str = "", now: datetime) -> Change:
    """Send to this channel again, beginning with what waited."""
    return _change(key, State.RUNNING, start=[State.PAUSED, State.TRIPPED], by=by, reason=why, now=now)


def close_breaker(key: ChannelKey, *, now: datetime) -> Change:
    """Let a tripped channel run, because a probe came through. A channel that an operator paused meanwhile stays
    paused.
    """
    return _change(key, State.RUNNING, start=[State.TRIPPED], by="", reason="a probe came through", now=now)


@transaction.atomic
def _change(
    key: ChannelKey, to: Channel.State, *, start: Sequence[Channel.State], by: str, reason: str, now: datetime
) -> Change:
    Channel.objects.get_or_create(**key._asdict(), defaults={"since": now})
    channel = Channel.objects.select_for_update(no_key=True).get(**key._asdict())
    if channel.state not in start:
        return Change(key, channel.state, channel.state)
    before = channel.state
    channel.state = to
    channel.since = now
    channel.changed_by = by
    channel.reason = reason
    channel.next_probe_at = now + _probe_pause() if to == State.TRIPPED else None
    channel.save(update_fields=["state", "since", "changed_by", "reason", "next_probe_at"])
    released = _release(key, now=now) if to == State.RUNNING else 0
    log.info(
        "channel_changed",
        token_type=key.token_type,
        apn_topic=key.apn_topic,
        before=before,
        after=to,
        released=released,
    )
    return Change(key, before, to, released)


def _probe_pause() -> timedelta:
    return timedelta(seconds=settings.CHANNEL_PROBE_SECONDS)


_SNAPSHOT = """
    SELECT is_draining, unreachable, token_type, apn_topic, state, since, next_probe_at, last_success_at
    FROM (SELECT EXISTS (SELECT FROM notifications_drain), ARRAY(SELECT name FROM notifications_gatewayoutage))
        AS server (is_draining, unreachable)
    LEFT JOIN notifications_channel ON TRUE
"""


def snapshot() -> Channels:
    """Read all channels, whether delivery is drained, and which gateways cannot be reached."""
    found = fetch(_SNAPSHOT)
    # There is one row even without any channel: it is empty but for what is true of the whole server.
    is_draining, unreachable, *_ = found[0]
    rows = [ChannelRow._make(columns) for _, _, *columns in found if columns[0] is not None]
    by_key = {ChannelKey(row.token_type, row.apn_topic): row for row in rows}
    return Channels(
        rows=by_key,
        proven=frozenset(key for key, row in by_key.items() if row.last_success_at),
        halted=frozenset(key for key, row in by_key.items() if row.state != State.RUNNING),
        is_draining=is_draining,
        unreachable=frozenset(unreachable),
    )


def load_halted() -> dict[ChannelKey, Channel]:
    """Return the channels to which nothing is sent."""
    return {_key(row): row for row in Channel.objects.exclude(state=State.RUNNING)}


def _key(channel: Channel) -> ChannelKey:
    return ChannelKey(channel.token_type, channel.apn_topic)


def take_probe(key: ChannelKey, *, now: datetime) -> bool:
    """Return whether the caller may send one push to this halted channel. One push may be sent in each pause, in the
    whole fleet.

    It never waits for the row: the caller holds notifications, and the holder of the row may be waiting for those.
    """
    due = Channel.objects.filter(**key._asdict(), state=State.TRIPPED, next_probe_at__lte=now)
    channel = due.select_for_update(no_key=True, skip_locked=True).first()
    if channel is None:
        return False
    channel.next_probe_at = now + _probe_pause()
    channel.save(update_fields=["next_probe_at"])
    return True


def note_success(keys: Iterable[ChannelKey], known: Known, *, now: datetime) -> None:
    """Note that something was delivered to these channels. Most of the time there is nothing to write."""
    stale = [key for key in sorted(set(keys)) if _is_stale(known.get(key), now)]
    Channel.objects.bulk_create(
        [Channel(**key._asdict(), since=now, last_success_at=now) for key in stale],
        update_conflicts=True,
        unique_fields=["token_type", "apn_topic"],
        update_fields=["last_success_at"],
    )


def _is_stale(channel: ChannelRow | None, now: datetime) -> bool:
    return not channel or not channel.last_success_at or channel.last_success_at <= now - SUCCESS_NOTED_EVERY


@transaction.atomic
def park(notification_ids: Sequence[int]) -> None:
    """Set aside the notifications whose channel is still halted.

    The channel is locked first, so that resuming it misses none of them.
    """
    if not notification_ids:
        return
    for channel in Channel.objects.select_for_update(no_key=True).exclude(state=State.RUNNING).order_by("pk"):
        waiting = _waiting(_key(channel)).filter(pk__in=notification_ids)
        waiting.update(next_attempt_at=F("expires_at"))


def _waiting(key: ChannelKey) -> QuerySet[Notification]:
    """Return the notifications of a channel that wait and that no worker is sending."""
    return Notification.objects.filter(routed_to([key]), state__in=DUE)


def routed_to(keys: Iterable[ChannelKey]) -> Q:
    """Return the condition that a notification's route belongs to one of these channels."""
    return reduce(or_, (_routed_to(key) for key in keys), Q(pk__in=[]))


def _routed_to(key: ChannelKey) -> Q:
    own = Q(route__token_type=key.token_type)
    return own & Q(route__apn_topic=key.apn_topic) if key.token_type == TokenType.APN else own


def parked(key: ChannelKey) -> QuerySet[Notification]:
    """Return the notifications that are set aside until this channel runs again."""
    return _waiting(key).filter(next_attempt_at=F("expires_at"))


def _release(key: ChannelKey, *, now: datetime) -> int:
    waiting = parked(key)
    spread = timedelta(seconds=waiting.count() / RELEASED_PER_SECOND)
    delay = ExpressionWrapper(Random() * Value(spread), output_field=DurationField())
    # Selected by id, because PostgreSQL cannot update a join.
    return Notification.objects.filter(pk__in=waiting.values("pk")).update(next_attempt_at=Value(now) + delay)


def release_probes(*, now: datetime) -> None:
    """Let one parked notification of each channel go that may be probed: the one with the fewest attempts."""
    for channel in Channel.objects.filter(state=State.TRIPPED, next_probe_at__lte=now):
        candidate = parked(_key(channel)).order_by("attempt_count", "pk").values_list("pk", flat=True).first()
        if candidate:
            Notification.objects.filter(pk=candidate, state__in=DUE).update(next_attempt_at=now)
