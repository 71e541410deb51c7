"""How much waits to be delivered: more than a limit, and new requests are refused with INTERNAL_ERROR.

What is parked for a halted channel is counted for that channel alone: one app that is paused fills its own share and
nobody else's. Counted every few seconds per process, so the limit is passed by what arrives in between; a sender that
was told of the failure repeats, and one that was told success can rely on it.
"""

from datetime import timedelta
from time import monotonic

from django.utils import timezone

from notifications import channels
from notifications.connections import once
from notifications.messages import ChannelKey
from notifications.models import Notification
from notifications.transitions import DUE

COUNTED_EVERY_SECONDS = 3.0
# Each costs a look at every notification that is parked for it.
PARKED_COUNTED_EVERY_SECONDS = 30.0
# What is parked is next due when it expires, a day later by default; retries are due long before.
SOON = timedelta(hours=1)


class Backlog:
    def __init__(self) -> None:
        self._is_full = False
        self._full_channels: set[ChannelKey] = set()
        self._counted_at = self._parked_counted_at = float("-inf")

    def is_full(self, channel: ChannelKey, limit: int) -> bool:
        """Whether too much waits, altogether or for this channel that is halted."""
        now = monotonic()
        if now - self._counted_at >= COUNTED_EVERY_SECONDS:
            self._is_full, self._counted_at = _is_too_much_due(limit), now
        if now - self._parked_counted_at >= PARKED_COUNTED_EVERY_SECONDS:
            self._full_channels, self._parked_counted_at = _find_full_channels(limit), now
        return self._is_full or channel in self._full_channels


def _is_too_much_due(limit: int) -> bool:
    """Counted up to the limit, by the partial index of what is due: a few dozen milliseconds when it is reached."""
    due = Notification.objects.filter(state__in=DUE, next_attempt_at__lte=timezone.now() + SOON)
    return due[:limit].count() >= limit


def _find_full_channels(limit: int) -> set[ChannelKey]:
    return {key for key in channels.load_halted() if channels.parked(key)[:limit].count() >= limit}


@once
def own_backlog() -> Backlog:
    """That of this process."""
    return Backlog()
