"""Judge gorush: each server, the way of the workers to it, and errors that no rule knows. The module is pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kit.figures import counted
from kit.health import peers
from kit.health.indicators import Group, Indicator, Kind, Page, State, last_hour, rows
from kit.health.peers import Peer, PeerKind

PAGE = Page("gorush configuration", "gorush_configuration")
GORUSH = Kind(
    *("gorush", Group.OUT, "gorush", "PushServerGatewayAway", PAGE), decides_readiness=True, concerns_all=True
)
REACH = Kind("gateway", Group.OUT, "Way to gorush", "PushServerGatewayAway", PAGE, concerns_all=True)
UNKNOWN_ERRORS = Kind(
    "unknown-errors",
    Group.OUT,
    "Unknown errors",
    "PushServerUnknownErrors",
    rows("Unknown errors", "notifications.unknowngatewayerror"),
)
KINDS = (GORUSH, REACH, UNKNOWN_ERRORS)
ABOUT_GORUSH = PeerKind(
    GORUSH, "answers", "does not answer", "Start gorush, or correct GORUSH_URL. Pushes wait meanwhile."
)


@dataclass(frozen=True, slots=True)
class Reached:
    """Each gorush, with whether it answers and what the config check found."""

    servers: Sequence[Peer] = ()


@dataclass(frozen=True, slots=True)
class GorushFacts:
    """What the database knows of gorush: since when no push reaches it, if that is so, and how many errors of the last
    hour no rule knows.
    """

    unreached_since: datetime | None = None
    unknown_errors: int = 0


def gorushes(found: Sequence[Peer], *, is_redis_down: bool) -> list[Indicator]:
    """Judge each gorush. Without Redis nothing is known of their configuration."""
    if not found:
        headline = "No pushes are sent: no gorush is configured"
        return [Indicator(GORUSH, State.RED, "no gorush is configured", "Set GORUSH_URL.", headline=headline)]
    seen = [Peer(one.host, one.is_up) for one in found] if is_redis_down else found
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
    headline = "No pushes are sent: none reaches gorush"
    return Indicator(REACH, State.RED, sentence, first_step, unreached_since, headline=headline)


def unknown_errors(count: int, now: datetime) -> Indicator:
    """Judge whether errors come that no rule knows. Among many failures they would not be seen."""
    if not count:
        return Indicator(UNKNOWN_ERRORS, State.GREEN, "every error of the last hour has a rule")
    sentence = f"{counted(count, 'error')} of the last hour that no rule knows"
    first_step = "Give them a rule. Until then they count as transient."
    return Indicator(UNKNOWN_ERRORS, State.YELLOW, sentence, first_step, during=last_hour(now))
