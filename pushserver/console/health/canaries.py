"""Health indicator of a canary, judged by its last round trip. The module does no I/O."""

from dataclasses import dataclass

from pushserver.console.health.indicators import REDIS_DOWN, Indicator, Kind, State

# The push of a dry run ends at the gateway, and belongs to no app.
LIMITS = "; a dry run up to the gateway: Apple, Google and halted apps are not tested"


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The result of the last round trip, as the status cache keeps it. A dry run ends at the gateway.

    ``cause`` is empty when all links held. ``words`` is a text for operators about the broken link, if there is one.
    """

    cause: str
    words: str
    total_ms: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """The facts about one canary. ``is_expected`` says that the settings schedule it."""

    is_expected: bool = False
    last: RoundTrip | None = None


def judge(kind: Kind, canary: CanaryFacts, *, is_redis_down: bool) -> Indicator:
    last = canary.last
    if is_redis_down:
        return Indicator(kind, State.GREY, REDIS_DOWN)
    if last and last.cause:
        first_step = "Messages of real clients fail at this link too. The page of the run has the details."
        late = f"A test message does not get through: {last.words}"
        return Indicator(kind, State.RED, f"broken: {last.words}", first_step, late=late)
    if last:
        limits = LIMITS if last.is_dry_run else ""
        return Indicator(kind, State.GREEN, f"{last.words}, {last.total_ms:,} ms in all{limits}")
    if canary.is_expected:
        first_step = "Is there a worker for the queue `canary`, and beat?"
        return Indicator(kind, State.YELLOW, "made no round trip lately", first_step)
    return Indicator(kind, State.OFF, "not set up (CANARY_PERIOD_SECONDS)")
