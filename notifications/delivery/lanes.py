"""How many pushes of each channel this process has under way, so that one channel that hangs does not take all there
is.

A channel has a lane of its own once something was delivered to it, and another one for addresses that nothing was
delivered to yet: tokens can be made up without end, and must not take the room of phones. All other channels of a
platform share one lane: clients choose the app topic, and a client that makes up many of them must not get a lane for
each. Lanes are counted per process and not for the fleet, because a hanging channel uses up the connections of a
process.

A lane is narrow at first, and wider by one for every few quick answers that come while more waits than it has room for,
as TCP starts slowly. An answer is quick when it takes not much longer than the quickest one: where more pushes at once
only make answers slower, a wider lane brings nothing. But what is under way when a process dies is sent again, so that
no more than is of use should be under way.
"""

from collections import Counter, deque
from collections.abc import Container
from math import inf
from typing import NamedTuple

from notifications.messages import ChannelKey

# It stands for every app topic that is not proven.
UNPROVEN = "(unproven)"
# It stands before the app topic for addresses that are not proven. No app topic has such letters.
NEW = "(new) "
# So many answers make a lane wider by one: with fewer, a backlog fills it before anything is known of the gateway.
ANSWERS_TO_WIDEN = 16
# An answer within this, or within some times the time of the quickest, is a quick one.
QUICK_SECONDS = 0.25
QUICK_TIMES = 4


def lane_of(channel: ChannelKey, proven: Container[ChannelKey]) -> ChannelKey:
    """Return the lane that pushes of this channel belong to."""
    return channel if channel in proven else ChannelKey(channel.token_type, UNPROVEN)


def lane_of_push(channel: ChannelKey, proven: Container[ChannelKey], *, is_route_proven: bool) -> ChannelKey:
    """Return the lane that a push of this channel takes room in."""
    if is_route_proven or channel not in proven:
        return lane_of(channel, proven)
    return ChannelKey(channel.token_type, NEW + channel.apn_topic)


class FullLanes(NamedTuple):
    """The lanes without room: those of channels that have one or two, and platforms whose shared lane is full."""

    channels: list[ChannelKey]
    unproven_platforms: list[int]


class Lanes:
    """A counter of the pushes in each lane: at most ``width`` in one, and ``first_width`` in a new one."""

    def __init__(self, width: int, *, first_width: int | None = None) -> None:
        self._width = width
        self._first_width = width if first_width is None else first_width
        self._taken: Counter[ChannelKey] = Counter()
        # Only proven channels have lanes that are long in use, so that these are few.
        self._answers: Counter[ChannelKey] = Counter()  # quick ones that came while the lane was crowded
        self._quickest: dict[ChannelKey, float] = {}  # of a lane while it was crowded, in seconds
        self._new: list[ChannelKey] = []  # entered by a turn that is not committed yet
        self._crowded: set[ChannelKey] = set()  # somebody found no room in them
        self._landed: deque[tuple[ChannelKey, float]] = deque()  # the loop appends, turns take away

    def enter(self, lane: ChannelKey) -> bool:
        """Take room for one push, and return whether there was any."""
        self._take_back_landed()
        if not self._has_room(lane):
            self._crowded.add(lane)
            return False
        self._taken[lane] += 1
        self._new.append(lane)
        return True

    def keep(self) -> None:
        """Keep the room that this turn took, because it is committed and the pushes are sent."""
        self._new.clear()

    def give_back(self) -> None:
        """Give back the room that this turn took: nothing of it was written."""
        for lane in self._new:
            self._leave(lane)
        self._new.clear()

    def land(self, lane: ChannelKey, seconds: float = inf) -> None:
        """Give back the room of a push that is over. Any thread may call this.

        ``seconds`` is how long the gateway took to deliver it; what it did not deliver says nothing about its speed.
        """
        self._landed.append((lane, seconds))

    def _take_back_landed(self) -> None:
        while self._landed:
            lane, seconds = self._landed.popleft()
            self._leave(lane)
            if lane in self._crowded and seconds < inf:
                self._answers[lane] += self._is_quick(lane, seconds)

    def _is_quick(self, lane: ChannelKey, seconds: float) -> bool:
        quickest = self._quickest[lane] = min(seconds, self._quickest.get(lane, inf))
        return seconds <= max(QUICK_SECONDS, QUICK_TIMES * quickest)

    def _leave(self, lane: ChannelKey) -> None:
        self._taken[lane] -= 1
        if self._taken[lane] <= 0:  # clients choose the app topic, so there is no end of lanes
            del self._taken[lane]

    def _has_room(self, lane: ChannelKey) -> bool:
        return self._taken[lane] < min(self._width, self._first_width + self._answers[lane] // ANSWERS_TO_WIDEN)

    def pass_over_full(self) -> FullLanes:
        """Return the lanes that have no room. From now on these count as crowded, and no others."""
        self._take_back_landed()
        full = [lane for lane in self._taken if not self._has_room(lane)]
        self._crowded = set(full)
        return FullLanes(
            [lane for lane in full if lane.apn_topic != UNPROVEN],
            [lane.token_type for lane in full if lane.apn_topic == UNPROVEN],
        )

    def has_room_again(self) -> bool:
        """Return whether a lane in which somebody found no room has some now."""
        self._take_back_landed()
        return any(self._has_room(lane) for lane in self._crowded)
