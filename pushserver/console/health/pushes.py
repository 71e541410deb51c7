"""The indicators of pushes: whether they are sent in time, halts, dead tokens, and results. The module does no I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from kit.display import exact
from notifications.messages import DRY_RUN, FAILURES
from pushserver.console.health import pages
from pushserver.console.health.judges import Queue, Waiting
from pushserver.console.health.verdicts import BAD, Facts, Group, Kind, State, Verdict, duration, listed

RUNNING, DRAINED, TRIPPED, PAUSED = "running", "drained", "tripped", "paused"
OVERDUE_YELLOW = 3.0  # seconds
# Shares of failures in the last minutes.
FAILING_RED, FAILING_YELLOW = 0.5, 0.1
# An app that was failing still is, above this share of the limit.
STILL_FAILING = 0.5
JUDGED_MINUTES = 3
FEW_TRIES = 20
OTHERWISE = "docs/delivery.md explains this class. The error rule says where the code comes from."
# Attempts by app, outcome and code.
ChannelTries = Mapping[tuple[str, str, str], int]


# What stopped delivery or an app -----------------------------------------------------------------------------------
class Switch(NamedTuple):
    """Delivery as a whole while it is drained, or one app. ``by`` is empty when the server itself acted.

    Only apps that something was delivered to count: made-up apps neither stop the server nor keep it running.
    ``devices`` is the kind of device that its pushes go to, for people.
    """

    state: str
    name: str
    by: str
    why: str
    since: datetime
    devices: str

    @property
    def is_on(self) -> bool:
        return self.state == RUNNING

    @property
    def is_halted(self) -> bool:
        return self.state in {TRIPPED, PAUSED}

    @property
    def stopper(self) -> str:
        return self.by or "a breaker"

    @property
    def words(self) -> str:
        """Return what is stopped, by whom and why. Only staff may read it."""
        state = "stopped" if self.state == DRAINED else f"{self.name} {self.state}"
        return f"{state} by {self.stopper} since {exact(self.since)}: {self.why or 'no reason given'}"


class Failing(NamedTuple):
    """An app whose last sends all failed, or the apps of a platform that nothing was delivered to yet.

    ``answer`` is the commonest code, with the gateway's redacted text where there is one.
    """

    name: str
    failures: int
    since: datetime
    answer: str


def sending(facts: Facts) -> Verdict:
    """Judge whether pushes are sent. It is red also if an operator stopped delivery, so that the next operator sees at
    once that nobody is notified. A red gateway, or a red way to it, explains that none is sent.
    """
    stopped = _stops(facts["switches"])
    if not stopped:
        away = _away(facts)
        return away or _failing(facts)
    is_drained = stopped[0].state == DRAINED
    action = "Start it" if is_drained else "Resume the apps"
    since = max(switch.since for switch in stopped)  # the last stop counts
    by = " and ".join(dict.fromkeys(switch.stopper for switch in stopped))
    return Verdict(
        State.RED,
        "; ".join(switch.words for switch in stopped),
        f"{action} again: waiting pushes expire {duration(facts['time_to_live'])} after their request.",
        since,
        own_page=pages.DRAIN if is_drained else pages.HALTED,
        headline=f"No pushes are sent: stopped by {by} since {exact(since)}",
    )


def _stops(switches: Sequence[Switch]) -> list[Switch]:
    """Return what keeps every push from being sent: the drain, or the halts of all apps. Mostly there is none."""
    drains = [switch for switch in switches if switch.state == DRAINED]
    return drains or ([] if any(switch.is_on for switch in switches) else list(switches))


def _away(facts: Facts) -> Verdict | None:
    """Return the verdict that follows from the first red gateway, or None."""
    gateways = [kind for part in facts["parts"] for kind in part.kinds if kind.group == Group.OUT and kind.concerns_all]
    for found in (found for kind in gateways for found in kind.verdicts(facts)):
        if found.state == State.RED and found.headline:
            sentence = found.headline[:1].lower() + found.headline[1:]
            return Verdict(State.RED, sentence, found.first_step, found.since, cause=found.id)
    return None


def _failing(facts: Facts) -> Verdict:
    """Judge whether what is sent gets through. A halt of an app has an indicator of its own."""
    halted = {switch.name for switch in facts["switches"] if switch.is_halted}
    failing: list[Failing] = [app for app in facts["failing"] if app.name not in halted]
    if not failing:
        return Verdict(State.GREEN, "pushes are sent")
    sentence = "; ".join(
        f"{app.name}: the last {app.failures} sends failed, mostly with {app.answer}" for app in failing
    )
    first_step = (
        "Look at its attempts: what does the gateway answer? Waiting pushes are sent again less and less often."
    )
    return Verdict(State.YELLOW, sentence, first_step, min(app.since for app in failing))


def channels(facts: Facts) -> Verdict:
    """Judge the apps by the worst halted one, and name each halted app."""
    switches: Sequence[Switch] = facts["switches"]
    halted = sorted(
        (switch for switch in switches if switch.is_halted),
        key=lambda channel: (channel.state != TRIPPED, channel.since),
    )
    running = sum(switch.is_on for switch in switches)
    if not halted:
        known = f"{running} running"
        return Verdict(State.GREEN, known) if running else Verdict(State.GREY, "nothing was delivered yet")
    first, states = halted[0], {channel.state for channel in halted}
    page = {TRIPPED: pages.TRIPPED, PAUSED: pages.PAUSED}[first.state] if len(states) == 1 else pages.HALTED
    state, first_step = {
        TRIPPED: (
            State.RED,
            "Repair the set-up at Apple, Google or the gateway. The app resumes when a probe succeeds.",
        ),
        PAUSED: (
            State.YELLOW,
            "Resume it when the work is done. Its waiting pushes expire meanwhile, each after its time to live.",
        ),
    }[first.state]
    sentence, headline = "; ".join(channel.words for channel in halted), _stopped_words(switches, halted, facts["now"])
    return Verdict(state, sentence, first_step, first.since, own_page=page, headline=headline)


def _stopped_words(switches: Iterable[Switch], halted: Iterable[Switch], now: datetime) -> str:
    """Return one line on which pushes are not sent, since when and why.

    They are those of all apps of a kind of device, or those of the app that was stopped last.
    """
    running = {switch.devices for switch in switches if switch.is_on}
    last = max(halted, key=lambda switch: (switch.devices not in running, switch.since))
    pushes = f"Pushes of {last.name}" if last.devices in running else f"{last.devices} pushes"
    return f"{pushes} stopped {duration((now - last.since).total_seconds())} ago: {last.state} by {last.stopper}"


def dead_tokens(facts: Facts) -> Verdict:
    """Judge whether dead tokens are disabled. Where a wrong set-up must be the reason, they are not.

    The fact has the apps whose dead tokens are ignored, with the time since when.
    """
    distrusted: Mapping[str, datetime] = facts["dead-tokens"]
    if not distrusted:
        return Verdict(State.GREEN, "dead tokens are disabled")
    names = listed(sorted(distrusted))
    sentence = (
        f"too many tokens of {names} are refused as dead: a wrong set-up is likelier, so no token is disabled and "
        f"pushes are retried"
    )
    first_step = "Check environment, project and topic at Apple, Google and the gateway. It recovers by itself."
    late = f"Pushes of {names} fail: a wrong set-up is likely"
    return Verdict(State.RED, sentence, first_step, min(distrusted.values()), late=late)


# Results: the share of failures of each app in the last minutes ---------------------------------------------------
def results(facts: Facts) -> Verdict:
    """Judge each app. ``tries`` counts the last JUDGED_MINUTES, and ``newest_tries`` the newest of them."""
    tries, until = facts["tries"], facts["counted_until"]
    during = (until - timedelta(minutes=JUDGED_MINUTES), until) if until else None
    states = {channel: _state_of(channel, facts) for channel in sorted({channel for channel, _, _ in tries})}
    bad = [(state, channel) for state in BAD for channel, known in states.items() if known == state]
    if not bad:
        total, failed = _failures(tries)
        sentence = f"{failed.total():,} of {total:,} attempts failed in the last {JUDGED_MINUTES} minutes"
        nothing = f"no push was attempted in the last {JUDGED_MINUTES} minutes"
        return Verdict(State.GREEN, sentence if total else nothing, during=during)
    sentence = "; ".join(f"{channel}: {_failing_words(tries, channel)}" for _, channel in bad)
    state, worst = bad[0]
    (_, code), _ = _failures(tries, worst)[1].most_common(1)[0]
    advice = next(filter(None, (part.advice(code) for part in facts["parts"])), OTHERWISE)
    late = f"Most pushes of {worst} fail" if state == State.RED else ""
    return Verdict(state, sentence, advice, late=late, during=during)


def _failures(tries: ChannelTries, only: str = "") -> tuple[int, Counter[tuple[str, str]]]:
    """Return the number of attempts, and the failed ones by outcome and code, in all apps or in one.

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


def _state_of(channel: str, facts: Facts) -> State:
    """Return the state of one app. ``before`` has the states of the indicators that were bad in the last snapshot.

    It gets worse if the last minutes and the newest of them are above the limit. It gets better as soon as the newest
    minute is clearly below the limit. So neither a moment of failures nor a moment without any changes it.
    """
    before = facts["before"].get("results", State.GREEN)
    total, failed = _failures(facts["tries"], channel)
    if total < FEW_TRIES:
        return State.GREEN
    recent = failed.total() / total
    newest_total, newest_failed = _failures(facts["newest_tries"], channel)
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


# Their table ----------------------------------------------------------------------------------------------------------
def _due_words(due: Waiting) -> str:
    if not due.oldest_seconds:
        return "nothing is overdue"
    return f"the longest waiting notification has been due for {duration(due.oldest_seconds)}"


def _answer_words(overdue: Waiting) -> str:
    if overdue.oldest_seconds <= OVERDUE_YELLOW:
        return "no request waits for its answer"
    return f"a request has waited for its answer for {duration(overdue.oldest_seconds)} too long"


# A notification behind a halt is not due.
DUE = Queue(
    name="delivery",
    count="pushserver_notifications_open",
    age="pushserver_notifications_oldest_due_age_seconds",
    red=60.0,
    yellow=10.0,
    subject="Pushes",
    first_step="Check the workers of the queue `batches`: are there enough? Then check whether a gateway is slow.",
    words=_due_words,
    title="Longest due notification",
    word="open",
    page=pages.OPEN,
)
OVERDUE = Queue(
    name="answers",
    age="pushserver_requests_overdue_age_seconds",
    red=10.0,
    yellow=OVERDUE_YELLOW,
    subject="Answers",
    first_step="Check the workers of the queue `batches`: none of them sends answers.",
    words=_answer_words,
)
SERVER, IN, OUT, WATCH = Group
PUSHES = (
    Kind("sending", OUT, "Sending", "PushServerNoPushes", sending, pages.CHANNELS, concerns_all=True),
    Kind("delivery", OUT, "Delivery", "PushServerDeliveryLate", DUE, pages.STUCK, concerns_all=True, follows=(SERVER,)),
    Kind("channels", OUT, "Apps", "PushServerChannelTripped", channels, pages.CHANNELS),
    Kind("dead-tokens", OUT, "Dead tokens", "PushServerDeathsDoubted", dead_tokens, pages.CHANNELS),
    Kind("answers", OUT, "Answers", "PushServerAnswersOverdue", OVERDUE, pages.REQUESTS, follows=(SERVER, OUT)),
    Kind("results", OUT, "Results of pushes", "PushServerPushesFail", results, pages.FAILED_ATTEMPTS),
)
