"""Judge the last round trip of a canary. The module is pure."""

from dataclasses import dataclass
from datetime import datetime

from kit.health.indicators import REDIS_DOWN, Indicator, Kind, State

# A dry run ends at the gateway, and is in no channel of an app.
LIMITS = "; as far as the gateway: nothing is shown about Apple, Google and halted channels"


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The last round trip. ``words`` say which link is broken, if one is. In a dry run the gateway drops the push."""

    finished_at: datetime
    is_broken: bool
    words: str
    total_ms: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """What is known of one canary. ``is_expected`` says that the settings have it run by itself."""

    is_expected: bool = False
    last: RoundTrip | None = None


def judge(kind: Kind, canary: CanaryFacts, *, is_redis_down: bool) -> Indicator:
    """Judge a canary by its last round trip."""
    last = canary.last
    if is_redis_down:
        return Indicator(kind, State.GREY, REDIS_DOWN)
    if last and last.is_broken:
        first_step = "Messages of real clients break there, too. The page of the run says more."
        return Indicator(kind, State.RED, f"broken: {last.words}", first_step)
    if last:
        limits = LIMITS if last.is_dry_run else ""
        return Indicator(kind, State.GREEN, f"{last.words}, {last.total_ms:,} ms in all{limits}")
    if canary.is_expected:
        first_step = "Is there a worker for the queue `canary`, and beat?"
        return Indicator(kind, State.YELLOW, "made no round trip lately", first_step)
    return Indicator(kind, State.OFF, "not set up (CANARY_PERIOD_SECONDS)")
