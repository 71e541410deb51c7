"""Indicator of traffic: whether requests and pushes are as many as usual at this hour. The module is pure.

The usual number is the lower quartile of the days of five weeks, so that a weekend does not count as silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from kit.display import counted
from pushserver.console.health import pages
from pushserver.console.health.indicators import Group, Indicator, Kind, State

TRAFFIC = Kind(
    *("traffic", Group.WATCH, "Traffic", "IndicatorTraffic", pages.NEWEST_REQUESTS),
    follows=(Group.SERVER, Group.IN, Group.OUT),
)
FEW_DAYS = 5
# An absence is judged over a period in which this number is usual. By chance it happens less than once in
# millions of periods.
EXPECTED = 40
MIN_MINUTES, MAX_MINUTES = 3, 60
FEW = 3  # per minute: fewer are no sign of a recovery
SILENT_SHARE, QUIET_SHARE = 0.05, 0.25
# A minute is counted within 15 s of its end.
NOT_COUNTED = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests through one bridge, or pushes to one kind of device.

    ``one`` and ``many`` name it in sentences: "request has arrived through Waku", "requests have arrived through Waku".
    ``usual`` are its sums in this hour of other days, in ascending order, and ``minutes`` its numbers in the minutes of
    the last hour that have been counted, the newest last.
    """

    one: str
    many: str
    usual: Sequence[int] = ()
    minutes: Sequence[int] = ()

    @property
    def usual_per_minute(self) -> float:
        return self.usual[len(self.usual) // 4] / 60 if self.usual else 0.0

    @property
    def judged_minutes(self) -> int:
        """Return the number of minutes in which `EXPECTED` are usual, or 0 if too little is known."""
        needed = ceil(EXPECTED / self.usual_per_minute) if self.usual_per_minute else MAX_MINUTES + 1
        return max(needed, MIN_MINUTES) if needed <= MAX_MINUTES else 0

    @property
    def silent_minutes(self) -> int:
        """Return the number of newest minutes without any. It is at most the number of counted minutes."""
        return next((n for n, number in enumerate(reversed(self.minutes)) if number), len(self.minutes))

    @property
    def share(self) -> float:
        """Return the share of the usual number in the judged minutes.

        It is 1 if too little is known, and as soon as the newest minute has a usual number.
        """
        if not 0 < self.judged_minutes <= len(self.minutes):
            return 1.0
        if self.minutes[-1] >= max(self.usual_per_minute / 2, FEW):
            return 1.0
        return sum(self.minutes[-self.judged_minutes :]) / (self.usual_per_minute * self.judged_minutes)

    @property
    def state(self) -> State:
        share = self.share
        return State.RED if share <= SILENT_SHARE else State.YELLOW if share <= QUIET_SHARE else State.GREEN

    @property
    def words(self) -> str:
        """Return the missing flow, with its usual rate."""
        usual = f"usual is {_rate(self.usual_per_minute)}"
        if self.silent_minutes >= MIN_MINUTES:
            return f"No {self.one} for {self.silent_minutes} min; {usual}"
        number = counted(sum(self.minutes[-self.judged_minutes :]), self.one, self.many)
        return f"Only {number} in {self.judged_minutes} min; {usual}"


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """All flows. ``days`` is the number of known days at this hour."""

    flows: Sequence[Flow] = ()
    days: int = 0


def traffic(facts: TrafficFacts, counted_until: datetime | None, now: datetime) -> Indicator:
    """Judge all flows by the counted minutes. The quietest flow decides the state."""
    if facts.days < FEW_DAYS:
        return Indicator(TRAFFIC, State.GREY, f"not known yet: {facts.days} of {FEW_DAYS} days to compare with")
    if counted_until is None or now - counted_until > NOT_COUNTED:
        return Indicator(TRAFFIC, State.GREY, "not known while nothing is counted")
    bad = sorted((flow for flow in facts.flows if flow.state != State.GREEN), key=lambda flow: flow.share)
    if not bad:
        return Indicator(TRAFFIC, State.GREEN, "as much as is usual at this hour")
    first_step = (
        "If the canary is fine, this server works. Look for a new release of the client, an outage of the network "
        "or of a gateway, or clients that moved to another server."
    )
    headline = bad[0].words if bad[0].state == State.RED else ""
    since = counted_until - timedelta(minutes=max(bad[0].silent_minutes, bad[0].judged_minutes))
    sentence = "; ".join(flow.words for flow in bad)
    return Indicator(TRAFFIC, bad[0].state, sentence, first_step, since, headline=headline)


def _rate(per_minute: float) -> str:
    return f"{per_minute:,.0f} a minute" if per_minute >= 2 else f"{per_minute * 60:,.0f} an hour"
