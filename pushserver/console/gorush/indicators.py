"""The health indicators of gorush: each server, the workers' way to it, and errors without a rule. Pure."""

from collections.abc import Sequence
from datetime import datetime

from kit.display import counted
from pushserver.console.checks.peers import Peer
from pushserver.console.health.judges import of_peers
from pushserver.console.health.verdicts import Facts, Group, Kind, Page, State, Verdict, last_hour, rows

PAGE = Page("gorush configuration", "gorush_configuration")
ERRORS_PAGE = rows("Unknown errors", "notifications.unknowngatewayerror")


def gorushes(facts: Facts) -> list[Verdict]:
    """Judge each gorush. Without Redis the findings of the config check are missing."""
    found: Sequence[Peer] = facts["gorushes"]
    if not found:
        headline = "No pushes are sent: no gorush is configured"
        return [Verdict(State.RED, "no gorush is configured", "Set GORUSH_URL.", headline=headline)]
    return of_peers(
        [Peer(one.host, one.is_up) for one in found] if facts["broker"] else found,
        up="answers",
        down="does not answer",
        first_step="Start gorush, or correct GORUSH_URL. Pushes wait meanwhile.",
        headline="No pushes are sent: no gorush answers",
    )


def way(facts: Facts) -> Verdict:
    """Judge whether pushes reach gorush. Its answers to this process do not help while the workers cannot reach it.

    ``cut_off`` names a process that cannot reach any gorush while others can.
    """
    since: datetime | None = facts["unreached_since"]
    if not any(one.is_up for one in facts["gorushes"]):
        return Verdict(State.GREY, "unknown while no gorush answers")
    if since is None and facts["cut_off"]:
        sentence = f"{facts['cut_off']} cannot reach gorush, and leaves its pushes to the others"
        first_step = "Check the network of that host and its GORUSH_URL, then restart that process."
        return Verdict(State.YELLOW, sentence, first_step)
    if since is None:
        return Verdict(State.GREEN, "pushes reach it")
    first_step = "Check that the workers can reach gorush and have the same GORUSH_URL. Pushes wait meanwhile."
    headline = "No pushes are sent: none reaches gorush"
    return Verdict(State.RED, "gorush answers, but no push reaches it", first_step, since, headline=headline)


def unknown_errors(facts: Facts) -> Verdict:
    """Judge whether errors come that no rule matches. Among many other failures they would go unnoticed."""
    count: int = facts["unknown-errors"]
    if not count:
        return Verdict(State.GREEN, "every error of the last hour has a rule")
    sentence = f"{counted(count, 'error')} of the last hour that no rule knows"
    first_step = "Give them a rule. Until then their pushes are tried again."
    return Verdict(State.YELLOW, sentence, first_step, during=last_hour(facts["now"]))


KINDS = (
    Kind(
        "gorush",
        Group.OUT,
        "gorush",
        "PushServerGatewayAway",
        gorushes,
        PAGE,
        decides_readiness=True,
        concerns_all=True,
    ),
    Kind(
        *("gateway", Group.OUT, "Way to gorush", "PushServerGatewayAway", way, PAGE),
        concerns_all=True,
        follows=("gorush",),
    ),
    Kind("unknown-errors", Group.OUT, "Unknown errors", "PushServerUnknownErrors", unknown_errors, ERRORS_PAGE),
)
