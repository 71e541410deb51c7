"""gorush for operators: its indicators, its page, its metrics, and the rules that read its errors."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

import httpx
from django.conf import settings
from django.urls import reverse

from kit.http import tls_context
from notifications.gateways import CUT_OFF
from notifications.gateways.gorush.errors import ANY_PLATFORM, NAMES, UNKNOWN, rule_of
from notifications.gateways.gorush.models import GatewayErrorRule, UnknownGatewayError
from notifications.models import Attempt, Halt
from pushserver.console.checks.gorush import NOTICES
from pushserver.console.gorush import indicators
from pushserver.console.gorush.advice import advice
from pushserver.console.gorush.indicators import GorushFacts, Reached
from pushserver.console.health.indicators import Indicator
from pushserver.console.parts import Evidence, ListPage, Operations, PeerPage

NAME = "gorush"
TIMEOUT_SECONDS = 2
HOUR = timedelta(hours=1)
# Rows are counted up to this number. A higher count is not worth the time.
MAX_COUNTED = 1000


class GorushOperations(Operations):
    name = document = label = NAME
    checks = ("notifications.gateways.gorush.tasks.check_gorush",)
    kinds = indicators.KINDS
    metric_modules: ClassVar[Mapping[str, str]] = {"gorush": "notifications.gateways.gorush.models"}
    url_modules: ClassVar[Mapping[str, str]] = {"hooks/": "pushserver.console.gorush.feedback"}
    peer_page = PeerPage(
        title=indicators.PAGE.title,
        icon="tune",
        url_name=indicators.PAGE.url_name,
        path="gorush",
        urls=lambda: settings.GORUSH_URLS,
        notices=NOTICES,
        kinds=[indicators.GORUSH.id],
        nothing="No gorush is configured: set GORUSH_URL.",
    )
    list_pages = (
        ListPage("Delivery", "Error rules", "rule", "notifications.gatewayerrorrule"),
        ListPage("Delivery", "Unknown errors", "help", "notifications.unknowngatewayerror"),
    )

    def ask(self) -> dict[str, bool]:
        """Return by URL whether each gorush answers."""
        with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS, verify=tls_context()) as client:
            return {url: _is_alive(client, url) for url in settings.GORUSH_URLS}

    def reach(self, asked: Mapping[str, bool], leaders: Mapping[str, float] | None, *, is_blind: bool) -> Reached:
        cut_off = "" if is_blind else CUT_OFF.read(NAME)
        return Reached(list(NOTICES.peers(asked, is_blind=is_blind)), cut_off or "")

    def judge_reached(self, reached: Reached, *, is_redis_down: bool) -> Iterator[Indicator]:
        yield from indicators.gorushes(reached.servers, is_redis_down=is_redis_down)

    def read(self, evidence: Evidence) -> GorushFacts:
        unreached = Halt.objects.in_force().filter(kind=Halt.Kind.UNREACHABLE, gateway=NAME)
        unknown = UnknownGatewayError.objects.filter(last_seen_at__gte=evidence.now - HOUR)
        return GorushFacts(unreached.values_list("since", flat=True).first(), unknown[:MAX_COUNTED].count())

    def judge_stored(self, stored: GorushFacts, reached: Reached, now: datetime) -> Iterator[Indicator]:
        yield indicators.reach(stored.unreached_since, reached)
        yield indicators.unknown_errors(stored.unknown_errors, now)

    def advice(self, code: str) -> str:
        return advice(code)

    def rule_urls(self, attempts: Sequence[Attempt]) -> dict[int, str]:
        own = [attempt for attempt in attempts if attempt.gateway == NAME and attempt.code]
        rules = list(GatewayErrorRule.objects.filter(code__in={attempt.code for attempt in own}))
        found = ((attempt.pk, rule_for(attempt, rules)) for attempt in own)
        return {
            pk: reverse("admin:notifications_gatewayerrorrule_change", args=[rule.pk]) for pk, rule in found if rule
        }


def _is_alive(client: httpx.Client, url: str) -> bool:
    try:
        return not client.get(f"{url}/healthz").is_server_error
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def rule_for(attempt: Attempt, rules: Sequence[GatewayErrorRule]) -> GatewayErrorRule | None:
    """Return the rule that gave an attempt its code. Of several with this code it is the one that matches the error.

    Errors that no rule matches share their code with rules, so a rule of that code has to match.
    """
    named = NAMES.get(attempt.token_type)
    fitting = [rule for rule in rules if rule.code == attempt.code and rule.platform in {named, ANY_PLATFORM}]
    exact = (rule for rule in fitting if rule_of(rule).matches(attempt.error))
    return next(exact, fitting[0] if fitting and attempt.code != UNKNOWN.code else None)
