"""What is to be put into the queue, and when."""

import random
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet

from notifications import channels, draining
from notifications.delivery.doubts import find_left_alone
from notifications.delivery.lanes import lane_of
from notifications.messages import ChannelKey, Outcome, channel_key
from notifications.models import Attempt, Notification
from notifications.policy import WORKER_LOST
from notifications.transitions import DUE, OVER, move

State = Notification.State

# How many pushes one task sends at once. Also how many may be ambiguous when a worker is killed.
BATCH_SIZE = 64
# How many lanes with much to do share what one sweep hands out.
LANES_SHARING = 4
# When there may be room again in a channel that was full.
CROWDED_SECONDS = 2.0
CROWDED_SPREAD_SECONDS = 6.0


def split_by_lane(notification_ids: Sequence[int]) -> Iterator[list[int]]:
    """Batches of one lane each: what hangs blocks its own tasks only."""
    if not notification_ids:
        return
    rows = Notification.objects.filter(pk__in=notification_ids).order_by("pk")
    for ids in _by_lane(rows, len(notification_ids), channels.load_proven()).values():
        for start in range(0, len(ids), BATCH_SIZE):
            yield ids[start : start + BATCH_SIZE]


def hand_out_due(*, now: datetime, limit: int, patience: timedelta) -> list[int]:
    """Notifications to put into the queue now: retries that are due, and any whose queue entry seems lost because it is
    older than ``patience``. Too little of that costs an empty task, nothing else.
    """
    if draining.current():
        return []
    channels.release_probes(now=now)
    due = Notification.objects.filter(
        Q(enqueued_at__isnull=True) | Q(enqueued_at__lte=now - patience), state__in=DUE, next_attempt_at__lte=now
    )
    ids = _share_out(due.order_by("next_attempt_at"), limit)
    Notification.objects.filter(pk__in=ids).update(enqueued_at=now)
    return ids


def _share_out(due: QuerySet[Notification], limit: int) -> list[int]:
    """Those that are due longest; when there are more than the limit, of each lane its share before more of one."""
    proven = channels.load_proven()
    oldest = _by_lane(due, limit, proven)
    if sum(map(len, oldest.values())) < limit:
        return [pk for ids in oldest.values() for pk in ids]
    share = limit // LANES_SHARING
    full = [key for key, ids in oldest.items() if len(ids) >= share]
    others = _by_lane(due.exclude(_in_lanes(full, proven)), limit - share * len(full), proven)
    shares = [pk for key in full for pk in oldest[key][:share]]
    rest = [pk for key in full for pk in oldest[key][share:]]
    return [*shares, *(pk for ids in others.values() for pk in ids), *rest][:limit]


def _by_lane(due: QuerySet[Notification], limit: int, proven: Container[ChannelKey]) -> dict[ChannelKey, list[int]]:
    by_lane: defaultdict[ChannelKey, list[int]] = defaultdict(list)
    for pk, token_type, apn_topic in due.values_list("pk", "route__token_type", "route__apn_topic")[:limit]:
        by_lane[lane_of(channel_key(token_type or 0, apn_topic or ""), proven)].append(pk)
    return by_lane


def _in_lanes(lanes: Iterable[ChannelKey], proven: Collection[ChannelKey]) -> Q:
    condition = channels.routed_to(lane for lane in lanes if lane in proven)
    for lane in lanes:
        if lane not in proven:
            condition |= Q(route__token_type=lane.token_type) & ~channels.routed_to(proven)
    return condition


def put_back(notification_ids: Sequence[int], *, now: datetime) -> None:
    """Their channel is full. They have not been tried; the sweep hands them out again in a few seconds."""
    delay = CROWDED_SECONDS + random.random() * CROWDED_SPREAD_SECONDS  # noqa: S311 - spreads load, guards nothing
    Notification.objects.filter(pk__in=notification_ids, state__in=DUE).update(
        next_attempt_at=now + timedelta(seconds=delay), enqueued_at=None
    )


def take_up_lost(*, now: datetime) -> int:
    """Notifications that a killed worker held: its push may have left, so they are ambiguous."""
    lost = Notification.objects.filter(state=State.IN_FLIGHT, lease_until__lte=now)
    with transaction.atomic():
        locked = list(lost.select_for_update(skip_locked=True).order_by("pk").values_list("pk", "ambiguous_count"))
        ambiguous_counts = {pk: count + 1 for pk, count in locked}
        Attempt.objects.filter(notification__in=ambiguous_counts, outcome__isnull=True).update(
            outcome=Outcome.AMBIGUOUS.value, code=WORKER_LOST
        )
        left_alone = find_left_alone(ambiguous_counts)
        move(Notification.objects.filter(pk__in=left_alone), State.UNCONFIRMED, finished_at=now, **OVER)
        move(
            Notification.objects.filter(pk__in=ambiguous_counts.keys() - left_alone),
            State.AMBIGUOUS,
            ambiguous_count=F("ambiguous_count") + 1,
            next_attempt_at=now,
            enqueued_at=None,
            lease_until=None,
        )
    return len(locked)
