"""Operator's side of the Web Push gateway: one indicator, advice, and the page that explains the rule for an error."""

from collections.abc import Mapping, Sequence
from typing import Any

from notifications.models import Attempt
from pushserver.console.health.verdicts import Facts, Group, Kind, State, Verdict
from pushserver.console.part import ListPage, Part
from tests.extending.web_push.gateway import NAME


def read(facts: Facts) -> Mapping[str, Any]:
    return {"web-push": Attempt.objects.filter(gateway=NAME, outcome="dead").count()}


def gone(facts: Facts) -> Verdict:
    return Verdict(State.GREEN, f"{facts['web-push']} are gone")


def rule_urls(attempts: Sequence[Attempt]) -> Mapping[int, str]:
    return {each.pk: f"/rules/{each.code}" for each in attempts if each.gateway == NAME}


WEB_PUSH = Part(
    name=NAME,
    label="Web Push",
    kinds=(Kind("web-push", Group.OUT, "Browsers", "PushServerPushesFail", gone),),
    read=read,
    advice=lambda code: "Ask the browser." if code == "no_browser" else "",
    list_pages=(ListPage("Browsers", "Their attempts", "send", "notifications.attempt"),),
    rule_urls=rule_urls,
)
