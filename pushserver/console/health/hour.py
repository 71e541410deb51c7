"""Reader of the last hour by the minute, as `traffic` has counted it, in a few queries over small rows."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q, QuerySet, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from notifications.messages import Outcome
from notifications.models import BeyondLimit
from pushserver.console.health import traffic
from pushserver.console.health.pushes import ChannelTries
from pushserver.console.models import Count, TrafficMinute

DELIVERED = Outcome.DELIVERED
Figure = Count.Figure
Tries = Mapping[tuple[str, str], int]
ByBridge = Mapping[tuple[datetime, str], int]
# A minute is counted some seconds after its end, so at most the two newest minutes may be missing.
NOT_YET_COUNTED = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Yesterday:
    """An hour of yesterday: attempts by outcome and code, and notifications by their final state."""

    tries: Tries
    ended: Mapping[str, int]


class BeyondFigures(NamedTuple):
    """The number of pushes with this effect of a limit in the last minute, hour and day."""

    effect: str
    limit: str
    minute: int
    hour: int
    day: int


@dataclass(frozen=True, slots=True)
class Hour:
    """The last hour, minute by minute, oldest first. ``counted`` has no entry for minutes that are not counted.

    ``by_channel`` counts the attempts of each minute by app, outcome and code. ``requests`` and ``replies``
    count those of each bridge in each minute. ``ended`` counts the notifications of the hour by their final state.
    ``yesterday`` is the same hour a day ago, or None if nothing was counted then. ``beyond`` counts the pushes beyond
    each limit, the most frequent first.
    """

    begins_at: Sequence[datetime]
    counted: Mapping[datetime, TrafficMinute]
    by_channel: Mapping[datetime, ChannelTries] = field(default_factory=dict)
    requests: ByBridge = field(default_factory=dict)
    replies: ByBridge = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    yesterday: "Yesterday | None" = None
    beyond: Sequence[BeyondFigures] = ()

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Return the beginning of the first minute and the end of the last."""
        return self.begins_at[0], self.begins_at[-1] + traffic.MINUTE

    @property
    def counted_until(self) -> datetime | None:
        """Return the end of the newest minute that was counted."""
        return max(self.counted) + traffic.MINUTE if self.counted else None

    def column(self, name: str) -> list[float | None]:
        """Return one figure of `TrafficMinute` for each minute, and None where it is unknown."""
        return [getattr(self.counted.get(begin_at), name, None) for begin_at in self.begins_at]

    def requests_by(self, bridge: str) -> list[float | None]:
        """Return the number of requests of a bridge for each minute, and None for a minute that was not counted."""
        return [self.requests.get((at, bridge), 0 if at in self.counted else None) for at in self.begins_at]

    def delivered_to(self, kinds: Sequence[str]) -> list[float | None]:
        """Return the number of pushes delivered to these kinds of tokens for each minute, and None for a minute that
        was not counted.
        """
        begins = tuple(f"{kind} " for kind in kinds)
        return self._attempts(lambda channel, outcome: outcome == DELIVERED and f"{channel} ".startswith(begins))

    def tried(self, *, delivered: bool) -> list[float | None]:
        """Return the number of attempts that were, or were not, delivered for each minute, and None as above."""
        return self._attempts(lambda _, outcome: (outcome == DELIVERED) == delivered)

    def _attempts(self, is_meant: Callable[[str, str], bool]) -> list[float | None]:
        return [
            sum(
                number
                for (channel, outcome, _), number in self.by_channel.get(at, {}).items()
                if is_meant(channel, outcome)
            )
            if at in self.counted
            else None
            for at in self.begins_at
        ]

    def of_bridge(self, bridge: str) -> tuple[int, int]:
        """Return the number of requests of a bridge in the hour, and of replies that it sent."""
        requests, replies = (
            sum(number for (_, name), number in counts.items() if name == bridge)
            for counts in (self.requests, self.replies)
        )
        return requests, replies

    def tries(self) -> Counter[tuple[str, str]]:
        """Return the number of attempts of the hour by outcome and code."""
        total: Counter[tuple[str, str]] = Counter()
        for begin_at in self.begins_at:
            for (_, outcome, code), number in self.by_channel.get(begin_at, {}).items():
                total[outcome, code] += number
        return total

    def newest(self, minutes: int) -> Counter[tuple[str, str, str]]:
        """Return the number of attempts by app, outcome and code in the newest ``minutes`` that were counted."""
        recent = self.begins_at[-(minutes + NOT_YET_COUNTED // traffic.MINUTE) :]
        total: Counter[tuple[str, str, str]] = Counter()
        for begin_at in [begin_at for begin_at in recent if begin_at in self.counted][-minutes:]:
            total.update(self.by_channel.get(begin_at, {}))
        return total


def read_hour(now: datetime) -> Hour:
    """Read the sixty minutes before this one."""
    begins_at = traffic.minutes(now)
    by_channel: dict[datetime, dict[tuple[str, str, str], int]] = {}
    rows = _of(Figure.ATTEMPTS, begins_at).values_list("begin_at", "subject", "outcome", "code", "count")
    for begin_at, channel, outcome, code, number in rows:
        by_channel.setdefault(begin_at, {})[channel, outcome, code] = number
    counted = TrafficMinute.objects.in_bulk(begins_at)
    requests, replies = (
        {(row.begin_at, row.subject): row.count for row in _of(figure, begins_at)}
        for figure in (Figure.REQUESTS, Figure.REPLIES)
    )
    ended, yesterday = _ended(begins_at), _yesterday(begins_at)
    return Hour(begins_at, counted, by_channel, requests, replies, ended, yesterday, _beyond(now))


def _of(figure: Figure, begins_at: Sequence[datetime]) -> QuerySet[Count]:
    return Count.objects.filter(figure=figure, begin_at__range=(begins_at[0], begins_at[-1]))


def _ended(begins_at: Sequence[datetime]) -> dict[str, int]:
    return dict(_of(Figure.ENDS, begins_at).values_list("outcome").annotate(Sum("count")))


def _yesterday(begins_at: Sequence[datetime]) -> Yesterday | None:
    before = [begin_at - traffic.DAY for begin_at in (begins_at[0], begins_at[-1])]
    if not TrafficMinute.objects.filter(begin_at__range=before).exists():
        return None
    rows = _of(Figure.ATTEMPTS, before).values_list("outcome", "code")
    tries = {(outcome, code): number for outcome, code, number in rows.annotate(Sum("count"))}
    return Yesterday(tries, _ended(before))


def _beyond(now: datetime) -> list[BeyondFigures]:
    """Return the pushes beyond each limit. The minute before each period counts in it, as far as it overlaps."""

    def within(period: timedelta) -> Combinable:
        return Coalesce(Sum("count", filter=Q(begin_at__gt=now - period - traffic.MINUTE)), 0)

    of_all = BeyondLimit.objects.filter(recipient=b"", installation_id="", begin_at__gt=now - traffic.DAY)
    rows = of_all.values_list("effect", "push_limit").annotate(
        minute=within(traffic.MINUTE), hour=within(traffic.SHOWN), day=Sum("count")
    )
    return [BeyondFigures(*row) for row in rows.order_by("-day", "effect", "push_limit")]
