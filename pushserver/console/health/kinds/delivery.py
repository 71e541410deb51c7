"""Indicators of delivery: sending, due notifications, channels, dead tokens and waiting answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pushserver.console.health import pages
from pushserver.console.health.indicators import DATABASE_SILENT, Group, Indicator, Kind, State, above, duration, listed
from pushserver.console.health.waiting import Waiting
from pushserver.console.notifications.standstill import DRAINED, Failing, Switch, headline, stopped_words, stops

SENDING = Kind("sending", Group.OUT, "Sending", "PushServerNoPushes", pages.CHANNELS, concerns_all=True)
DELIVERY = Kind(
    *("delivery", Group.OUT, "Delivery", "PushServerDeliveryLate", pages.STUCK),
    concerns_all=True,
    follows=(Group.SERVER,),
)
CHANNELS = Kind("channels", Group.OUT, "Channels", "PushServerChannelTripped", pages.CHANNELS)
DEAD_TOKENS = Kind("dead-tokens", Group.OUT, "Dead tokens", "PushServerDeathsDoubted", pages.CHANNELS)
ANSWERS = Kind(
    *("answers", Group.OUT, "Answers", "PushServerAnswersOverdue", pages.REQUESTS),
    follows=(Group.SERVER, Group.OUT),
)
KINDS = (SENDING, DELIVERY, CHANNELS, DEAD_TOKENS, ANSWERS)

# Limits in seconds.
DUE_RED, DUE_YELLOW = 60.0, 10.0
OVERDUE_RED, OVERDUE_YELLOW = 10.0, 3.0
TRIPPED, PAUSED = "tripped", "paused"


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """Facts about delivery from the database. ``due`` and ``overdue_seconds`` are None where counting took too long.

    ``switches`` are the drain and the channels, and ``failing`` the apps whose last sends all failed.
    ``deaths_distrusted`` has the channels whose dead tokens are ignored, with the time since when.
    """

    switches: Sequence[Switch] = ()
    failing: Sequence[Failing] = ()
    deaths_distrusted: Mapping[str, datetime] = field(default_factory=dict)
    time_to_live: timedelta = timedelta(days=1)
    due: Waiting | None = field(default_factory=Waiting)
    overdue_seconds: float | None = 0.0

    @property
    def halted(self) -> list[Switch]:
        """Return the channels that an operator paused or a breaker tripped."""
        return [switch for switch in self.switches if not switch.is_on and switch.state != DRAINED]


def sending(facts: DeliveryFacts, gateways: Sequence[Indicator] = ()) -> Indicator:
    """Judge whether pushes are sent. It is red also if an operator stopped delivery, so that the next operator sees at
    once that nobody is notified.

    ``gateways`` are the indicators of the gateways and of the ways to them. One that is red and concerns all pushes
    explains that none is sent.
    """
    stopped = stops(facts.switches)
    away = next((one for one in gateways if one.state == State.RED and one.kind.concerns_all and one.headline), None)
    if not stopped and away:
        sentence = away.headline[:1].lower() + away.headline[1:]
        return Indicator(SENDING, State.RED, sentence, away.first_step, away.since, cause=away.id)
    if not stopped:
        return _failing(facts)
    is_drained = stopped[0].state == DRAINED
    action = "Start it" if is_drained else "Resume the channels"
    wait = duration(facts.time_to_live.total_seconds())
    return Indicator(
        SENDING,
        State.RED,
        _each(stopped),
        f"{action} again: waiting pushes expire {wait} after their request.",
        max(switch.since for switch in stopped),
        own_page=pages.DRAIN if is_drained else pages.HALTED,
        headline=headline(stopped),
    )


def _failing(facts: DeliveryFacts) -> Indicator:
    """Judge whether what is sent gets through. A halt of a channel has an indicator of its own."""
    halted = {channel.name for channel in facts.halted}
    failing = [app for app in facts.failing if app.name not in halted]
    if not failing:
        return Indicator(SENDING, State.GREEN, "pushes are sent")
    sentence = "; ".join(
        f"{app.name}: the last {app.failures} sends failed, mostly with {app.answer}" for app in failing
    )
    first_step = (
        "Look at its attempts: what does the gateway answer? Waiting pushes are sent again less and less often."
    )
    return Indicator(SENDING, State.YELLOW, sentence, first_step, min(app.since for app in failing))


def _each(switches: Sequence[Switch]) -> str:
    return "; ".join(switch.words for switch in switches)


def delivery(due: Waiting | None, now: datetime) -> Indicator:
    """Judge delivery by the age of the longest due notification. A notification behind a halt is not due."""
    state = state_of_due(due)
    if due is None:
        return Indicator(DELIVERY, state, DATABASE_SILENT)
    seconds = due.oldest_seconds
    if not seconds:
        return Indicator(DELIVERY, state, "nothing is overdue")
    sentence = f"the longest waiting notification has been due for {duration(seconds)}"
    if state == State.GREEN:
        return Indicator(DELIVERY, state, sentence)
    first_step = "Check the workers of the queue `batches`: are there enough? Then check whether a gateway is slow."
    since, late = now - timedelta(seconds=seconds), f"Pushes are {duration(seconds)} late"
    return Indicator(DELIVERY, state, sentence, first_step, since, late=late)


def state_of_due(due: Waiting | None) -> State:
    return above(due.oldest_seconds, red=DUE_RED, yellow=DUE_YELLOW) if due else State.GREY


def channels(facts: DeliveryFacts, now: datetime) -> Indicator:
    """Judge the channels by the worst halted one, and name each halted channel."""
    if facts.halted:
        return replace(_halted(facts.halted), headline=stopped_words(facts.switches, now=now))
    running = sum(switch.is_on for switch in facts.switches)
    if running:
        return Indicator(CHANNELS, State.GREEN, f"{running} running")
    return Indicator(CHANNELS, State.GREY, "nothing was delivered yet")


def _halted(halted: Sequence[Switch]) -> Indicator:
    in_order = sorted(halted, key=lambda channel: (channel.state != TRIPPED, channel.since))
    first = in_order[0]
    states = {channel.state for channel in halted}
    page = {TRIPPED: pages.TRIPPED, PAUSED: pages.PAUSED}[first.state] if len(states) == 1 else pages.HALTED
    if first.state == PAUSED:
        first_step = (
            "Resume it when the work is done. Its waiting pushes expire meanwhile, each after its time to live."
        )
        return Indicator(CHANNELS, State.YELLOW, _each(in_order), first_step, first.since, own_page=page)
    first_step = "Repair the set-up at Apple, Google or the gateway. The channel resumes when a probe succeeds."
    return Indicator(CHANNELS, State.RED, _each(in_order), first_step, first.since, own_page=page)


def dead_tokens(distrusted: Mapping[str, datetime]) -> Indicator:
    """Judge whether dead tokens are disabled. Where a wrong set-up must be the reason, they are not."""
    if not distrusted:
        return Indicator(DEAD_TOKENS, State.GREEN, "dead tokens are disabled")
    names = listed(sorted(distrusted))
    sentence = (
        f"too many tokens of {names} are refused as dead: a wrong set-up is likelier, so no token is disabled and "
        f"pushes are retried"
    )
    first_step = "Check environment, project and topic at Apple, Google and the gateway. It recovers by itself."
    late = f"Pushes of {names} fail: a wrong set-up is likely"
    return Indicator(DEAD_TOKENS, State.RED, sentence, first_step, min(distrusted.values()), late=late)


def answers(overdue_seconds: float | None, now: datetime) -> Indicator:
    """Judge answers by the time for which the oldest one is overdue."""
    if overdue_seconds is None:
        return Indicator(ANSWERS, State.GREY, DATABASE_SILENT)
    state = above(overdue_seconds, red=OVERDUE_RED, yellow=OVERDUE_YELLOW)
    if state == State.GREEN:
        return Indicator(ANSWERS, state, "no request waits for its answer")
    sentence = f"a request has waited for its answer for {duration(overdue_seconds)} too long"
    first_step = "Check the workers of the queue `batches`: none of them sends answers."
    since, late = now - timedelta(seconds=overdue_seconds), f"Answers are {duration(overdue_seconds)} late"
    return Indicator(ANSWERS, state, sentence, first_step, since, late=late)
