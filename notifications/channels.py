"""Channels: one app on one platform, which an operator pauses and a breaker trips.

A notification whose channel is halted is parked: it keeps its state and is next due when it expires, so that nothing
looks at it before, unless the channel runs again. Locks go from the channel to its notifications, never back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.functions import Random

from measuring.batches import count
from notifications.messages import ChannelKey, platform
from notifications.metrics import CHANNEL_TRIPS
from notifications.models import Channel, Notification
from notifications.transitions import DUE
from registrations.messages import TokenType

log = structlog.get_logger(__name__)
State = Channel.State
# Rows as they were read a moment ago. A channel without a row runs, and nothing was delivered to it yet.
Known = Mapping[ChannelKey, Channel]

# Nobody needs a channel's last success more exactly, and every worker writes it.
SUCCESS_NOTED_EVERY = timedelta(minutes=1)
# How many channels may be tripped to which nothing was ever delivered.
MAX_UNPROVEN = 50
# Released ones come back spread over time, so that retries of other channels are not queued behind all of them.
RELEASED_PER_SECOND = 500


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator or a breaker did, for the log entry of it."""

    channel: ChannelKey
    before: str
    after: str
    released_count: int = 0

    @property
    def is_change(self) -> bool:
        return self.before != self.after


def pause(key: ChannelKey, *, by: str, why: str, now: datetime) -> Change:
    """Send nothing to this channel until somebody resumes it. What comes for it waits, at most its time to live."""
    return _change(key, State.PAUSED, start=[State.RUNNING, State.TRIPPED], by=by, reason=why, now=now)


def trip(key: ChannelKey, *, reason: str, by: str = "", now: datetime) -> Change:
    """Stop sending because sending is useless or does harm, and probe now and then whether that is over."""
    change = _change(key, State.TRIPPED, start=[State.RUNNING], by=by, reason=reason, now=now)
    if change.is_change:
        log.error("channel_tripped", **key._asdict(), reason=reason)
    if change.is_change and not by:
        count(CHANNEL_TRIPS, [(platform(key.token_type),)])
    return change


def is_worth_a_row(key: ChannelKey) -> bool:
    """A stranger's made-up app topics are refused by Apple one by one: they fill neither the console nor the log."""
    unproven = Channel.objects.filter(last_success_at__isnull=True)
    return unproven.count() < MAX_UNPROVEN or Channel.objects.filter(**key._asdict()).exists()


def resume(key: ChannelKey, *, by: str, why: str = "", now: datetime) -> Change:
    """Send again, beginning with what waited."""
    return _change(key, State.RUNNING, start=[State.PAUSED, State.TRIPPED], by=by, reason=why, now=now)


def close_breaker(key: ChannelKey, *, now: datetime) -> Change:
    """A probe came through. A channel that an operator paused meanwhile stays paused."""
    return _change(key, State.RUNNING, start=[State.TRIPPED], by="", reason="a probe came through", now=now)


@transaction.atomic
def _change(
    key: ChannelKey, to: Channel.State, *, start: Sequence[Channel.State], by: str, reason: str, now: datetime
) -> Change:
    Channel.objects.get_or_create(**key._asdict(), defaults={"since": now})
    channel = Channel.objects.select_for_update(no_key=True).get(**key._asdict())
    if channel.state not in start:
        return Change(key, channel.state, channel.state)
    before, channel.state = channel.state, to
    channel.since, channel.changed_by, channel.reason = now, by, reason
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


def find(keys: Iterable[ChannelKey]) -> dict[ChannelKey, Channel]:
    """The rows of those channels that have one."""
    condition = reduce(or_, (Q(**key._asdict()) for key in keys), Q())
    return {_key(row): row for row in Channel.objects.filter(condition)} if condition else {}


def load(keys: Iterable[ChannelKey]) -> dict[ChannelKey, Channel]:
    """The rows of these channels, and those of all that are halted."""
    condition = reduce(or_, (Q(**key._asdict()) for key in set(keys)), ~Q(state=State.RUNNING))
    return {_key(row): row for row in Channel.objects.filter(condition)}


def load_proven() -> set[ChannelKey]:
    """Those to which something was delivered: as many as there are apps, whatever clients make up."""
    rows = Channel.objects.filter(last_success_at__isnull=False).values_list("token_type", "apn_topic")
    return {ChannelKey(*row) for row in rows}


def load_halted() -> dict[ChannelKey, Channel]:
    return {_key(row): row for row in Channel.objects.exclude(state=State.RUNNING)}


def _key(channel: Channel) -> ChannelKey:
    return ChannelKey(channel.token_type, channel.apn_topic)


def take_probe(channel: Channel, *, now: datetime) -> bool:
    """Whether the caller may send one push to this halted channel. One may in each pause, in the whole fleet.

    Never waits for the row: the caller holds notifications, and whoever holds the row may be waiting for those.
    """
    if channel.next_probe_at is None or channel.next_probe_at > now:
        return False
    due = Channel.objects.filter(pk=channel.pk, state=State.TRIPPED, next_probe_at__lte=now)
    if not due.select_for_update(no_key=True, skip_locked=True).exists():
        return False
    channel.next_probe_at = now + _probe_pause()
    channel.save(update_fields=["next_probe_at"])
    return True


def note_success(keys: Iterable[ChannelKey], known: Known, *, now: datetime) -> None:
    """Most of the time nothing is to be written."""
    stale = [key for key in sorted(set(keys)) if _is_stale(known.get(key), now)]
    Channel.objects.bulk_create(
        [Channel(**key._asdict(), since=now, last_success_at=now) for key in stale],
        update_conflicts=True,
        unique_fields=["token_type", "apn_topic"],
        update_fields=["last_success_at"],
    )


def _is_stale(channel: Channel | None, now: datetime) -> bool:
    return not channel or not channel.last_success_at or channel.last_success_at <= now - SUCCESS_NOTED_EVERY


@transaction.atomic
def park(notification_ids: Sequence[int]) -> None:
    """Set aside those whose channel is halted still. It is locked first, so that resuming it misses none of them."""
    if not notification_ids:
        return
    for channel in Channel.objects.select_for_update(no_key=True).exclude(state=State.RUNNING).order_by("pk"):
        waiting = _waiting(_key(channel)).filter(pk__in=notification_ids)
        waiting.update(next_attempt_at=F("expires_at"), enqueued_at=None)


def _waiting(key: ChannelKey) -> QuerySet[Notification]:
    """Notifications of a channel that nobody is sending."""
    return Notification.objects.filter(routed_to([key]), state__in=DUE)


def routed_to(keys: Iterable[ChannelKey]) -> Q:
    """Condition: the notification's route belongs to one of these channels."""
    return reduce(or_, (_routed_to(key) for key in keys), Q(pk__in=[]))


def _routed_to(key: ChannelKey) -> Q:
    own = Q(route__token_type=key.token_type)
    return own & Q(route__apn_topic=key.apn_topic) if key.token_type == TokenType.APN else own


def parked(key: ChannelKey) -> QuerySet[Notification]:
    return _waiting(key).filter(next_attempt_at=F("expires_at"))


def _release(key: ChannelKey, *, now: datetime) -> int:
    waiting = parked(key)
    spread = timedelta(seconds=waiting.count() / RELEASED_PER_SECOND)
    delay = ExpressionWrapper(Random() * Value(spread), output_field=DurationField())
    # By id: PostgreSQL cannot update a join.
    return Notification.objects.filter(pk__in=waiting.values("pk")).update(next_attempt_at=Value(now) + delay)


def release_probes(*, now: datetime) -> None:
    """Let one parked notification of each channel go that may be probed: the one that was tried least."""
    for channel in Channel.objects.filter(state=State.TRIPPED, next_probe_at__lte=now):
        candidate = parked(_key(channel)).order_by("attempt_count", "pk").values_list("pk", flat=True).first()
        if candidate:
            Notification.objects.filter(pk=candidate, state__in=DUE).update(next_attempt_at=now, enqueued_at=None)
