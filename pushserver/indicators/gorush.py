"""Judge gorush: each server, the way of the workers to it, and what became of the pushes. The module is pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kit.health.indicators import BAD, Group, Indicator, Kind, State, last_hour
from notifications.gateways.gorush.advice import advice
from notifications.gateways.gorush.push_api import DRY_RUN
from notifications.messages import FAILURES
from pushserver.indicators import pages, peers
from pushserver.indicators.peers import Peer, PeerKind

GORUSH = Kind("gorush", Group.OUT, "gorush", "PushServerGatewayAway", pages.GORUSH, decides_readiness=True)
REACH = Kind("gateway", Group.OUT, "Way to gorush", "PushServerGatewayAway", pages.GORUSH)
RESULTS = Kind("results", Group.OUT, "Results at gorush", "PushServerPushesFail", pages.FAILED_ATTEMPTS)
UNKNOWN_ERRORS = Kind("unknown-errors", Group.OUT, "Unknown errors", "PushServerUnknownErrors", pages.UNKNOWN_ERRORS)
KINDS = (GORUSH, REACH, RESULTS, UNKNOWN_ERRORS)

FAILING_RED, FAILING_YELLOW = 0.5, 0.1
# Where it was failing, it still is above this share of the limit.
STILL_FAILING = 0.5
JUDGED_MINUTES = 3
FEW_TRIES = 20
NOTHING_TRIED = f"no push was tried in the last {JUDGED_MINUTES} minutes"
ABOUT_GORUSH = PeerKind(
    GORUSH, "answers", "does not answer", "Start gorush, or correct GORUSH_URL. Pushes wait meanwhile."
)

# Attempts by channel, outcome and code.
ChannelTries = Mapping[tuple[str, str, str], int]


@dataclass(frozen=True, slots=True)
class GorushFacts:
    """What the database knows of gorush. ``unreached_since`` tells since when no push reaches it, if that is so.

    ``tries`` counts the attempts of the last minutes by channel, outcome and code, ``newest_tries`` those of the newest
    of them; ``counted_until`` is when beat last counted. ``before`` has the states of the indicators that were bad a
    moment ago.
    """

    unreached_since: datetime | None = None
    tries: ChannelTries = field(default_factory=dict)
    newest_tries: ChannelTries = field(default_factory=dict)
    counted_until: datetime | None = None
    before: Mapping[str, str] = field(default_factory=dict)
    unknown_errors: int = 0


def gorushes(found: Sequence[Peer], *, is_redis_away: bool) -> list[Indicator]:
    """Judge each gorush. Without Redis nothing is known of their configuration."""
    if not found:
        return [Indicator(GORUSH, State.RED, "no gorush is configured: nothing goes out", "Set GORUSH_URL.")]
    seen = [Peer(one.host, one.is_up) for one in found] if is_redis_away else found
    judged = [peers.judge(one, seen, ABOUT_GORUSH) for one in seen]
    if any(one.is_up for one in seen):
        return judged
    return [replace(one, headline="No pushes are sent: no gorush answers") for one in judged]


def reach(unreached_since: datetime | None, found: Sequence[Peer]) -> Indicator:
    """Judge whether pushes reach gorush: that it answers us is of no use while it does not answer the workers."""
    if not any(one.is_up for one in found):
        return Indicator(REACH, State.GREY, "not known while no gorush answers")
    if unreached_since is None:
        return Indicator(REACH, State.GREEN, "pushes reach it")
    first_step = "Is the way from the workers to gorush open, and GORUSH_URL the same there? Pushes wait meanwhile."
    sentence = "gorush answers, but no push reaches it"
    return Indicator(REACH, State.RED, sentence, first_step, unreached_since)


def results(facts: GorushFacts) -> Indicator:
    """Judge gorush's results in each channel by the share of failures in the last minutes."""
    green = Indicator(RESULTS, State.GREEN, NOTHING_TRIED, during=_judged(facts))
    bad = [(state, channel) for channel in _channels(facts.tries) if (state := _failing(channel, facts)) in BAD]
    if not bad:
        total, failed = _failures(facts.tries)
        sentence = f"{failed.total():,} of {total:,} tries failed in the last {JUDGED_MINUTES} minutes"
        return replace(green, sentence=sentence) if total else green
    bad.sort(key=lambda found: BAD.index(found[0]))
    sentence = "; ".join(f"{channel}: {_failing_words(facts.tries, channel)}" for _, channel in bad)
    (_, code), _ = _failures(facts.tries, bad[0][1])[1].most_common(1)[0]
    return replace(green, state=bad[0][0], sentence=sentence, first_step=advice(code))


def _judged(facts: GorushFacts) -> tuple[datetime, datetime] | None:
    until = facts.counted_until
    return (until - timedelta(minutes=JUDGED_MINUTES), until) if until else None


def _channels(tries: ChannelTries) -> list[str]:
    return sorted({channel for channel, _, _ in tries})


def _failures(tries: ChannelTries, only: str = "") -> tuple[int, Counter[tuple[str, str]]]:
    """Return how many tries there were, and those that failed by outcome and code, in all channels or in one.

    Those of the canary that were dropped at gorush say nothing about anybody else.
    """
    failed: Counter[tuple[str, str]] = Counter()
    total = 0
    for (channel, outcome, code), number in tries.items():
        if channel == (only or channel) and code != DRY_RUN:
            total += number
            if outcome in FAILURES:
                failed[outcome, code] += number
    return total, failed


def _share(tries: ChannelTries, channel: str) -> float:
    total, failed = _failures(tries, channel)
    return failed.total() / max(total, 1)


def _failing(channel: str, facts: GorushFacts) -> State:
    """Return the state of one channel.

    It gets worse when the last minutes are bad and the newest of them still is, and better as soon as the newest one is
    clearly below the limit. So neither a moment of failures nor a moment without any changes it.
    """
    before = facts.before.get(RESULTS.id, State.GREEN)
    is_enough = _failures(facts.tries, channel)[0] >= FEW_TRIES
    is_newest_known = _failures(facts.newest_tries, channel)[0] > 0
    recent = _share(facts.tries, channel)
    newest = _share(facts.newest_tries, channel) if is_newest_known else recent
    for state, limit in ((State.RED, FAILING_RED), (State.YELLOW, FAILING_YELLOW)):
        was_there = before in (state, State.RED)
        is_begun = is_enough and min(recent, newest) > limit
        if is_begun or (is_enough and was_there and newest > limit * STILL_FAILING):
            return state
    return State.GREEN


def _failing_words(tries: ChannelTries, channel: str) -> str:
    total, failed = _failures(tries, channel)
    (outcome, code), _ = failed.most_common(1)[0]
    most = f"{outcome} ({code})" if code else outcome
    return f"{failed.total():,} of {total:,} tries failed in the last {JUDGED_MINUTES} minutes, most of them {most}"


def unknown_errors(count: int, now: datetime) -> Indicator:
    """Judge whether errors come that no rule knows. Among many failures they would not be seen."""
    if not count:
        return Indicator(UNKNOWN_ERRORS, State.GREEN, "every error of the last hour has a rule")
    sentence = f"{count} {'error' if count == 1 else 'errors'} of the last hour that no rule knows"
    first_step = "Give them a rule. Until then they count as transient."
    return Indicator(UNKNOWN_ERRORS, State.YELLOW, sentence, first_step, during=last_hour(now))
