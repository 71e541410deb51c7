"""How many pushes of each channel this process has under way: one channel that hangs must not take all there is.

A lane is a channel's own once something was delivered to it. All others of its platform share one: clients choose the
app topic, and whoever makes up many must not get a lane, and a task, for each.

Per process, not for the fleet: what a hanging channel uses up is this process's threads and connections.
"""

from collections import Counter
from collections.abc import Container, Iterable
from threading import Condition
from time import monotonic

from django.conf import settings

from notifications.connections import once
from notifications.messages import ChannelKey

# Stands for every app topic that is not proven.
UNPROVEN = "(unproven)"


def lane_of(channel: ChannelKey, proven: Container[ChannelKey]) -> ChannelKey:
    return channel if channel in proven else ChannelKey(channel.token_type, UNPROVEN)


class Lanes:
    """Counts pushes by channel, at most ``width`` each. A channel is slow while a push of it is overdue."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._taken: Counter[ChannelKey] = Counter()
        self._overdue: Counter[ChannelKey] = Counter()
        self._changed = Condition()

    def enter(self, channel: ChannelKey) -> bool:
        """Take room for one push, if there is any."""
        with self._changed:
            if self._taken[channel] >= self._width:
                return False
            self._taken[channel] += 1
            return True

    def leave(self, channels: Iterable[ChannelKey], *, overdue: Iterable[ChannelKey] = ()) -> None:
        """``channels`` has one for each push that is over, ``overdue`` those of them that were marked so."""
        with self._changed:
            _decrease(self._taken, channels)
            _decrease(self._overdue, overdue)
            self._changed.notify_all()

    def mark_overdue(self, channels: Iterable[ChannelKey]) -> None:
        with self._changed:
            self._overdue.update(channels)
            self._changed.notify_all()

    def is_slow(self, channel: ChannelKey) -> bool:
        with self._changed:
            return channel in self._overdue

    def wait_for_room(self, channel: ChannelKey, wanted: int, *, until: float) -> bool:
        """Whether there is room for ``wanted`` pushes by then (monotonic). Nobody waits for a slow channel."""
        with self._changed:
            while self._width - self._taken[channel] < min(wanted, self._width):
                if channel in self._overdue or not self._changed.wait(until - monotonic()):
                    return False
        return True


def _decrease(counts: Counter[ChannelKey], channels: Iterable[ChannelKey]) -> None:
    """Without leaving zeros behind: clients choose the app topic, so there is no end of channels."""
    for channel in channels:
        counts[channel] -= 1
        if counts[channel] <= 0:
            del counts[channel]


@once
def own_lanes() -> Lanes:
    """Those of this process."""
    return Lanes(settings.CHANNEL_IN_FLIGHT)
