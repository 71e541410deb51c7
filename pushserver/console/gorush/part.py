"""gorush for operators: its indicators, its page, its metrics, and the rules that read its errors."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from django.conf import settings
from django.urls import reverse

from kit.db.clock import HOUR
from kit.http import tls_context
from notifications.gateways import CUT_OFF
from notifications.gateways.gorush.errors import ANY_PLATFORM, NAMES, UNKNOWN, rule_of
from notifications.gateways.gorush.models import GatewayErrorRule, UnknownGatewayError
from notifications.models import Attempt, Halt
from pushserver.console.checks.gorush import NOTICES
from pushserver.console.gorush.advice import advice
from pushserver.console.gorush.indicators import KINDS, PAGE
from pushserver.console.health.verdicts import Facts
from pushserver.console.part import ListPage, Part, PeerPage

NAME = "gorush"
TIMEOUT_SECONDS = 2
# Rows are counted up to this number. A higher count is not worth the time.
MAX_COUNTED = 1000


# Facts ----------------------------------------------------------------------------------------------------------------
def ask() -> Mapping[str, Any]:
    """Return by URL whether each gorush answers."""
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS, verify=tls_context()) as client:
        return {"gorush_is_up": {url: _is_alive(client, url) for url in settings.GORUSH_URLS}}


def _is_alive(client: httpx.Client, url: str) -> bool:
    try:
        return not client.get(f"{url}/healthz").is_server_error
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def reach(facts: Facts) -> Mapping[str, Any]:
    """Return each gorush with the findings of the config check, and the name of a process that cannot reach any."""
    is_blind = bool(facts["broker"])
    servers = NOTICES.peers(facts["gorush_is_up"], is_blind=is_blind)
    return {"gorushes": list(servers), "cut_off": "" if is_blind else CUT_OFF.read(NAME) or ""}


def read(facts: Facts) -> Mapping[str, Any]:
    """Return since when no push reaches gorush, and the number of errors of the last hour without a rule."""
    unreached = Halt.objects.in_force().filter(kind=Halt.Kind.UNREACHABLE, gateway=NAME)
    unknown = UnknownGatewayError.objects.filter(last_seen_at__gte=facts["now"] - HOUR)
    return {
        "unreached_since": unreached.values_list("since", flat=True).first(),
        "unknown-errors": unknown[:MAX_COUNTED].count(),
    }


# Rules ----------------------------------------------------------------------------------------------------------------
def rule_urls(attempts: Sequence[Attempt]) -> dict[int, str]:
    """Return the page of the rule that classified the error of each attempt."""
    own = [attempt for attempt in attempts if attempt.gateway == NAME and attempt.code]
    rules = list(GatewayErrorRule.objects.filter(code__in={attempt.code for attempt in own}))
    found = ((attempt.pk, rule_for(attempt, rules)) for attempt in own)
    return {pk: reverse("admin:notifications_gatewayerrorrule_change", args=[rule.pk]) for pk, rule in found if rule}


def rule_for(attempt: Attempt, rules: Sequence[GatewayErrorRule]) -> GatewayErrorRule | None:
    """Return the rule that gave an attempt its code. Of several with this code it is the one that matches the error.

    Errors that no rule matches share their code with rules, so a rule of that code has to match.
    """
    named = NAMES.get(attempt.token_type)
    fitting = [rule for rule in rules if rule.code == attempt.code and rule.platform in {named, ANY_PLATFORM}]
    exact = (rule for rule in fitting if rule_of(rule).matches(attempt.error))
    return next(exact, fitting[0] if fitting and attempt.code != UNKNOWN.code else None)


GORUSH = Part(
    name=NAME,
    label=NAME,
    kinds=KINDS,
    ask=ask,
    reach=reach,
    read=read,
    advice=advice,
    admin_module="pushserver.console.gorush.admin",
    metric_modules={"gorush": "notifications.gateways.gorush.models"},
    url_modules={"hooks/": "pushserver.console.gorush.feedback"},
    peer_page=PeerPage(
        title=PAGE.title,
        icon="tune",
        url_name=PAGE.url_name,
        path="gorush",
        urls=lambda: settings.GORUSH_URLS,
        notices=NOTICES,
        kinds=["gorush"],
        nothing="No gorush is configured: set GORUSH_URL.",
    ),
    list_pages=(
        ListPage("Delivery", "Error rules", "rule", "notifications.gatewayerrorrule"),
        ListPage("Delivery", "Unknown errors", "help", "notifications.unknowngatewayerror"),
    ),
    rule_urls=rule_urls,
)
