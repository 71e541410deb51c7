"""Indicator of the results of pushes: the share of failures of each channel in the last minutes. The module is pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from notifications.messages import DRY_RUN, FAILURES
from pushserver.console.health import pages
from pushserver.console.health.indicators import BAD, Group, Indicator, Kind, State

RESULTS = Kind("results", Group.OUT, "Results of pushes", "PushServerPushesFail", pages.FAILED_ATTEMPTS)
FAILING_RED, FAILING_YELLOW = 0.5, 0.1
# A channel that was failing still is, above this share of the limit.
STILL_FAILING = 0.5
JUDGED_MINUTES = 3
FEW_TRIES = 20
NOTHING_TRIED = f"no push was attempted in the last {JUDGED_MINUTES} minutes"
OTHERWISE = "docs/delivery.md explains this class. The error rule says where the code comes from."

# Attempts by channel, outcome and code.
ChannelTries = Mapping[tuple[str, str, str], int]


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """Counts of attempts by channel, outcome and code.

    ``tries`` counts the last JUDGED_MINUTES, and ``newest_tries`` the newest of them. ``counted_until`` is the end of
    the newest counted minute. ``before`` has the states of the indicators that were bad in the last snapshot.
    """

    tries: ChannelTries = field(default_factory=dict)
    newest_tries: ChannelTries = field(default_factory=dict)
    counted_until: datetime | None = None
    before: Mapping[str, str] = field(default_factory=dict)


def results(facts: ResultFacts, advice: Callable[[str], str]) -> Indicator:
    """Judge each channel. ``advice`` returns the first step for the most frequent code of failures."""
    green = Indicator(RESULTS, State.GREEN, NOTHING_TRIED, during=_judged(facts))
    channels = sorted({channel for channel, _, _ in facts.tries})
    bad = [(state, channel) for channel in channels if (state := _failing(channel, facts)) in BAD]
    if not bad:
        total, failed = _failures(facts.tries)
        sentence = f"{failed.total():,} of {total:,} attempts failed in the last {JUDGED_MINUTES} minutes"
        return replace(green, sentence=sentence) if total else green
    bad.sort(key=lambda found: BAD.index(found[0]))
    sentence = "; ".join(f"{channel}: {_failing_words(facts.tries, channel)}" for _, channel in bad)
    worst_state, worst = bad[0]
    (_, code), _ = _failures(facts.tries, worst)[1].most_common(1)[0]
    late = f"Most pushes of {worst} fail" if worst_state == State.RED else ""
    return replace(green, state=worst_state, sentence=sentence, first_step=advice(code) or OTHERWISE, late=late)


def _judged(facts: ResultFacts) -> tuple[datetime, datetime] | None:
    until = facts.counted_until
    return (until - timedelta(minutes=JUDGED_MINUTES), until) if until else None


def _failures(tries: ChannelTries, only: str = "") -> tuple[int, Counter[tuple[str, str]]]:
    """Return the number of attempts, and the failed ones by outcome and code, in all channels or in one.

    Attempts of the canary that its gateway dropped do not count, because they say nothing about real pushes.
    """
    failed: Counter[tuple[str, str]] = Counter()
    total = 0
    for (channel, outcome, code), number in tries.items():
        if channel == (only or channel) and code != DRY_RUN:
            total += number
            if outcome in FAILURES:
                failed[outcome, code] += number
    return total, failed


def _failing(channel: str, facts: ResultFacts) -> State:
    """Return the state of one channel.

    It gets worse if the last minutes and the newest of them are above the limit. It gets better as soon as the newest
    minute is clearly below the limit. So neither a moment of failures nor a moment without any changes it.
    """
    before = facts.before.get(RESULTS.id, State.GREEN)
    total, failed = _failures(facts.tries, channel)
    if total < FEW_TRIES:
        return State.GREEN
    recent = failed.total() / total
    newest_total, newest_failed = _failures(facts.newest_tries, channel)
    newest = newest_failed.total() / newest_total if newest_total else recent
    for state, limit in ((State.RED, FAILING_RED), (State.YELLOW, FAILING_YELLOW)):
        was_there = before in (state, State.RED)
        if min(recent, newest) > limit or (was_there and newest > limit * STILL_FAILING):
            return state
    return State.GREEN


def _failing_words(tries: ChannelTries, channel: str) -> str:
    total, failed = _failures(tries, channel)
    (outcome, code), _ = failed.most_common(1)[0]
    commonest = f"{outcome} ({code})" if code else outcome
    recent = f"in the last {JUDGED_MINUTES} minutes"
    return f"{failed.total():,} of {total:,} attempts failed {recent}, most of them {commonest}"
