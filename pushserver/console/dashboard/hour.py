"""The last hour by the minute, as `traffic` has counted it: two queries, a few hundred small rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from notifications.models import Attempt
from pushserver import traffic
from pushserver.models import AttemptMinute, TrafficMinute

DELIVERED = Attempt.Outcome.DELIVERED
Tries = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Hour:
    """Minute by minute, the oldest first. ``counted`` has no entry for minutes that nobody has counted (yet).

    ``tries`` are how many tries at the gateway ended how in each minute, by outcome and code.
    """

    begins_at: Sequence[datetime]
    counted: Mapping[datetime, TrafficMinute]
    tries: Mapping[datetime, Tries]

    @property
    def counted_until(self) -> datetime | None:
        return max(self.counted) + traffic.MINUTE if self.counted else None

    def column(self, name: str) -> list[float | None]:
        """One of the figures of `TrafficMinute`; None where it is not known."""
        return [getattr(self.counted.get(begin_at), name, None) for begin_at in self.begins_at]

    def tried(self, *, delivered: bool) -> list[float | None]:
        return [
            sum(
                number for (outcome, _), number in self.tries.get(at, {}).items() if (outcome == DELIVERED) == delivered
            )
            if at in self.counted
            else None
            for at in self.begins_at
        ]

    def total(self, last: timedelta = traffic.SHOWN) -> Counter[tuple[str, str]]:
        """Tries by outcome and code, of so much at the end of the hour."""
        total: Counter[tuple[str, str]] = Counter()
        for begin_at in self.begins_at[-(last // traffic.MINUTE) :]:
            total.update(self.tries.get(begin_at, {}))
        return total


def read_hour(now: datetime) -> Hour:
    begins_at = traffic.minutes(now)
    shown = {"begin_at__gte": begins_at[0], "begin_at__lte": begins_at[-1]}
    tries: dict[datetime, dict[tuple[str, str], int]] = {}
    rows = AttemptMinute.objects.filter(**shown).values_list("begin_at", "outcome", "code", "count")
    for begin_at, outcome, code, number in rows:
        tries.setdefault(begin_at, {})[outcome, code] = number
    return Hour(begins_at, TrafficMinute.objects.in_bulk(begins_at), tries)
