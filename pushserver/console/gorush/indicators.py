"""The health indicators of gorush: each server, the workers' way to it, and errors without a rule. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from kit.display import counted
from pushserver.console.checks import peers
from pushserver.console.checks.peers import Peer, PeerKind
from pushserver.console.health.indicators import Group, Indicator, Kind, Page, State, last_hour, rows

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
    """The gorush servers, each with whether it answers and with the findings of the config check.

    ``cut_off`` names a process that cannot reach any of them while others can, or is empty.
    """

    servers: Sequence[Peer] = ()
    cut_off: str = ""


@dataclass(frozen=True, slots=True)
class GorushFacts:
    """The facts about gorush in the database.

    ``unreached_since`` is when pushes stopped reaching it, or None. The count is of the last hour's errors without a
    rule.
    """

    unreached_since: datetime | None = None
    unknown_errors: int = 0


def gorushes(found: Sequence[Peer], *, is_redis_down: bool) -> list[Indicator]:
    """Judge each gorush. Without Redis the findings of the config check are missing."""
    if not found:
        headline = "No pushes are sent: no gorush is configured"
        return [Indicator(GORUSH, State.RED, "no gorush is configured", "Set GORUSH_URL.", headline=headline)]
    seen = [Peer(one.host, one.is_up) for one in found] if is_redis_down else found
    judged = [peers.judge(one, seen, ABOUT_GORUSH) for one in seen]
    if any(one.is_up for one in seen):
        return judged
    return [replace(one, headline="No pushes are sent: no gorush answers") for one in judged]


def reach(unreached_since: datetime | None, found: Reached) -> Indicator:
    """Judge whether pushes reach gorush. Its answers to this process do not help while the workers cannot reach it."""
    if not any(one.is_up for one in found.servers):
        return Indicator(REACH, State.GREY, "unknown while no gorush answers")
    if unreached_since is None and found.cut_off:
        sentence = f"{found.cut_off} cannot reach gorush, and leaves its pushes to the others"
        first_step = "Check the network of that host and its GORUSH_URL, then restart that process."
        return Indicator(REACH, State.YELLOW, sentence, first_step)
    if unreached_since is None:
        return Indicator(REACH, State.GREEN, "pushes reach it")
    first_step = "Check that the workers can reach gorush and have the same GORUSH_URL. Pushes wait meanwhile."
    sentence = "gorush answers, but no push reaches it"
    headline = "No pushes are sent: none reaches gorush"
    return Indicator(REACH, State.RED, sentence, first_step, unreached_since, headline=headline)


def unknown_errors(count: int, now: datetime) -> Indicator:
    """Judge whether errors come that no rule matches. Among many other failures they would go unnoticed."""
    if not count:
        return Indicator(UNKNOWN_ERRORS, State.GREEN, "every error of the last hour has a rule")
    sentence = f"{counted(count, 'error')} of the last hour that no rule knows"
    first_step = "Give them a rule. Until then their pushes are tried again."
    return Indicator(UNKNOWN_ERRORS, State.YELLOW, sentence, first_step, during=last_hour(now))
