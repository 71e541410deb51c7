"""Operator's side of the Web Push gateway: one indicator, advice, and the page that explains the rule for an error."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from notifications.models import Attempt
from pushserver.console.health.indicators import Group, Indicator, Kind, State
from pushserver.console.parts import Evidence, ListPage, Operations
from tests.extending.web_push.gateway import NAME

GONE = Kind("web-push", Group.OUT, "Browsers", "PushServerPushesFail")


class WebPushOperations(Operations):
    name = NAME
    label = "Web Push"
    kinds = (GONE,)
    list_pages = (ListPage("Browsers", "Their attempts", "send", "notifications.attempt"),)

    def read(self, evidence: Evidence) -> int:
        return Attempt.objects.filter(gateway=NAME, outcome="dead").count()

    def judge_stored(self, stored: int, reached: Any, now: datetime) -> Iterator[Indicator]:
        yield Indicator(GONE, State.GREEN, f"{stored} are gone")

    def advice(self, code: str) -> str:
        return "Ask the browser." if code == "no_browser" else ""

    def rule_urls(self, attempts: Sequence[Attempt]) -> Mapping[int, str]:
        return {each.pk: f"/rules/{each.code}" for each in attempts if each.gateway == NAME}
