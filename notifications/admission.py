"""Admission: how much may wait, by shares, so that nobody's flood refuses anybody else's requests.

    MAX_OPEN_NOTIFICATIONS ──┬── UNPROVEN_SHARE of it for each platform: addresses that nothing was delivered to yet,
                             │   and apps that nothing was delivered to yet
                             └── the rest, in equal parts: one for each app that something was delivered to

When a share is full, what comes for it is refused with INTERNAL_ERROR, and no other share notices. A sender that was
told of the failure repeats its request, and one that was told success can rely on it.

Each process counts every few seconds, and adds what it accepted since. What is parked for a halted channel counts for
no share. It is bounded by itself: by MAX_OPEN_NOTIFICATIONS for each channel.
"""

from collections import Counter
from datetime import datetime, timedelta
from time import monotonic
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from kit.db.statements import fetch
from kit.once import once
from notifications import channels
from notifications.delivery.lanes import UNPROVEN, lane_of
from notifications.messages import ChannelKey

COUNTED_EVERY_SECONDS = 3.0
# Counting takes at most this part of the time, however much waits.
COUNTING_PART = 0.05
# Counting reads every notification that is parked for the channel.
PARKED_COUNTED_EVERY_SECONDS = 30.0
# What is parked is next due when it expires, a day later by default. Retries are due long before.
SOON = timedelta(hours=1)

# The share of a notification is that of its channel, if something was delivered to its route and to its channel.
_COUNT = """
    WITH due AS (
        SELECT route_id FROM notifications_notification
        WHERE state IN ('pending', 'retrying', 'ambiguous') AND next_attempt_at <= %(soon)s
        ORDER BY next_attempt_at LIMIT %(limit)s
    ), waiting AS (
        SELECT channel.id, route.token_type, count(*) AS number
        FROM due JOIN registrations_route AS route ON route.id = due.route_id
        LEFT JOIN notifications_channel AS channel ON channel.token_type = route.token_type
            AND channel.apn_topic = CASE route.token_type WHEN 1 THEN route.apn_topic ELSE '' END
            AND channel.last_success_at IS NOT NULL AND route.is_proven
        GROUP BY channel.id, route.token_type
    )
    SELECT channel.token_type, channel.apn_topic, coalesce(waiting.number, 0)
    FROM notifications_channel AS channel LEFT JOIN waiting USING (id) WHERE channel.last_success_at IS NOT NULL
    UNION ALL SELECT token_type, NULL, number FROM waiting WHERE id IS NULL
"""


class Share(NamedTuple):
    """How much waits for one lane, and how much may."""

    lane: ChannelKey
    waiting: int
    limit: int


def load_shares(*, now: datetime) -> list[Share]:
    """Count what waits, for each proven channel, and for whatever is not proven of each platform where any waits."""
    rows = fetch(_COUNT, {"soon": now + SOON, "limit": 2 * settings.MAX_OPEN_NOTIFICATIONS})
    proven = sum(apn_topic is not None for _, apn_topic, _ in rows)
    return [
        Share(ChannelKey(token_type, UNPROVEN), waiting, unproven_limit())
        if apn_topic is None
        else Share(ChannelKey(token_type, apn_topic), waiting, proven_limit(proven))
        for token_type, apn_topic, waiting in rows
    ]


def unproven_limit() -> int:
    """Return how many notifications to whatever is not proven may wait, for each platform."""
    return max(1, int(settings.MAX_OPEN_NOTIFICATIONS * settings.UNPROVEN_SHARE))


def proven_limit(channel_count: int) -> int:
    """Return how many notifications may wait for each of so many proven channels."""
    return max(1, int(settings.MAX_OPEN_NOTIFICATIONS * (1 - settings.UNPROVEN_SHARE) / max(1, channel_count)))


class Admission:
    """The decision whether a notification may be taken, by a count of what waits that is renewed every few seconds."""

    def __init__(self) -> None:
        self._waiting: Counter[ChannelKey] = Counter()
        self._limits: dict[ChannelKey, int] = {}
        self._full_channels: set[ChannelKey] = set()
        self._count_at = self._count_parked_at = float("-inf")

    def refresh(self) -> None:
        """Count what waits, if that was a while ago."""
        started = monotonic()
        if started >= self._count_at:
            shares = load_shares(now=timezone.now())
            self._waiting = Counter({share.lane: share.waiting for share in shares})
            self._limits = {share.lane: share.limit for share in shares}
            self._count_at = monotonic() + max(COUNTED_EVERY_SECONDS, (monotonic() - started) / COUNTING_PART)
        if started >= self._count_parked_at:
            self._full_channels = _find_full_channels(settings.MAX_OPEN_NOTIFICATIONS)
            self._count_parked_at = started + PARKED_COUNTED_EVERY_SECONDS

    def is_full(self, channel: ChannelKey, *, is_route_proven: bool) -> bool:
        """Return whether too much waits in the share that a notification belongs to."""
        lane = self.lane(channel, is_route_proven=is_route_proven)
        return self._waiting[lane] >= self._limits.get(lane, unproven_limit()) or channel in self._full_channels

    def add(self, channel: ChannelKey, *, is_route_proven: bool) -> None:
        """Note that one more waits."""
        self._waiting[self.lane(channel, is_route_proven=is_route_proven)] += 1

    def lane(self, channel: ChannelKey, *, is_route_proven: bool) -> ChannelKey:
        """Return the lane whose share a notification counts for."""
        return lane_of(channel, self._limits if is_route_proven else ())


def _find_full_channels(limit: int) -> set[ChannelKey]:
    return {key for key in channels.load_halted() if channels.parked(key)[:limit].count() >= limit}


@once
def own_admission() -> Admission:
    """Return the admission of this process."""
    return Admission()
