"""Advice for operators about the codes that many attempts fail with, and the page of the error rules. It does no I/O.

Waiting helps only with codes of Apple or Google. Codes about our own gorush need an operator.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from notifications.gateways.gorush.errors import SeedRule, seed_rules

ONLY_WAIT = (
    "This is an outage or a limit of Apple or Google: look at their status pages; nothing else helps but waiting."
)
PROVIDER = "gorush did not get through to Apple or Google: look at its log, its proxy and its firewall."
GORUSH = "Our own gorush: check that it runs and reaches Apple and Google. Its page shows if it answers."
SLOW = "Our own gorush is slow or its queue is full: raise its `worker_num`. Check if Apple and Google are slow."
STOPPED = "Something stops gorush or cuts its connections: look at its log, its memory and at proxies before it."
FOREIGN = "The server at GORUSH_URL does not answer as gorush does: correct GORUSH_URL, or the proxy before gorush."
KEYS = "Correct the keys that gorush has for Apple: key, team, certificate, and the environment that they are made for."
TOPIC = "Apple refuses this app topic from us: compare the app's topic with the key that gorush has."
GOOGLE = "Correct the service account that gorush has for Google: its file, its permissions and its project."
CERTIFICATE = "Renew gorush's certificate, the one that it has for Apple, or its trust in those of Apple and Google."
WORKER = "Workers die: the system's log shows the cause, often a lack of memory."
DROPPED = "gorush takes no pushes of this platform: set `ios.enabled` and `android.enabled`."
RULE = "Give these errors a rule. Until then their pushes are tried again."
FAULT = "A fault of this server: the log of the workers shows it. Report it."
ABSENT = "These routes belong to a gateway that is no longer part of this server."

_CODES = {
    ONLY_WAIT: """IdleTimeout InternalServerError ServiceUnavailable Shutdown TooManyProviderTokenUpdates
        TooManyRequests google_429 google_5xx internal quota_exceeded unavailable""",
    PROVIDER: "connection_lost cannot_fetch_token google_404 google_4xx provider_unreachable proxy",
    GORUSH: "unreachable",
    SLOW: "timeout queue_full",
    STOPPED: "cut_off cancelled empty",
    FOREIGN: "not_http not_json not_understood",
    KEYS: """BadCertificate BadCertificateEnvironment BadEnvironmentKeyIdInToken ExpiredProviderToken Forbidden
        InvalidProviderToken MissingProviderToken UnrelatedKeyIdInToken""",
    TOPIC: "BadTopic MissingTopic TopicDisallowed",
    GOOGLE: "permission service_account third_party_auth",
    CERTIFICATE: "tls",
    WORKER: "worker_lost",
    DROPPED: "dropped",
    RULE: "unknown",
    FAULT: "gateway_failed",
    ABSENT: "no_gateway",
}
# Statuses with which gorush, or a proxy before it, says that it has too much to do.
BUSY = ("http_429", "http_500")
ADVICE = {code: advice for advice, codes in _CODES.items() for code in codes.split()}


def advice(code: str) -> str:
    """Return the advice about a code, or an empty text.

    A status of gorush itself, or of a proxy before it (`http_502`), is about gorush, not about Apple or Google.
    """
    if code.startswith("http_"):
        return SLOW if code in BUSY else STOPPED if code.startswith("http_5") else FOREIGN
    return ADVICE.get(code, "")


# The page ------------------------------------------------------------------------------------------------------------
PLATFORMS = {"ios": "Apple", "android": "Firebase", "any": "gorush"}
HEAD = """\
# Error rules

For operators: how the server reads an error that gorush reports, and what to do about it. This page is made from the
code (`manage.py reference error-rules`). The console has the rules in use under *Error rules*, with those of operators.

The first rule that matches decides, from top to bottom; upper and lower case are the same. [Delivery](delivery.md) says
what follows from each class. A *guarded* rule also matches tokens that are fine while the set-up is wrong. A text
without a rule is `transient`, and listed under *Unknown errors*.

## What to do about a code

A code that is not in this table needs no operator: the token is dead, or the push can never be sent.

| codes | what to do |
| --- | --- |
"""


def page() -> str:
    """Return the page of the error rules in Markdown."""
    rules = seed_rules()
    sections = [line for platform, title in PLATFORMS.items() for line in _section(platform, title, rules)]
    return HEAD + "\n".join([*_advices(), "", *sections])


def _advices() -> Iterator[str]:
    for text in dict.fromkeys(ADVICE.values()):
        codes = ", ".join(f"`{code}`" for code in sorted(ADVICE) if ADVICE[code] == text)
        yield f"| {codes} | {text} |"


def _section(platform: str, title: str, rules: tuple[SeedRule, ...]) -> Iterator[str]:
    """Yield the table of a platform. Rules that follow each other and say the same share a row."""
    yield from (f"## Errors of {title}", "", "| text | class | code | remark |", "| --- | --- | --- | --- |")
    for said, same in groupby((rule for rule in rules if rule.platform == platform), _said):
        yield f"| {_texts(same)} | {' | '.join(said)} |"
    yield ""


def _said(rule: SeedRule) -> tuple[str, str, str]:
    """Return what the row of a rule says: class, code and remark. Most rules of Apple have their text as their code."""
    pause = f"retried after {rule.retry_base_seconds} s" if rule.retry_base_seconds else ""
    remark = "; ".join(filter(None, (rule.remark, "guarded" if rule.is_guarded else "", pause)))
    is_own = rule.text == rule.code
    return f"`{rule.outcome}`", "its text" if is_own else f"`{rule.code}`", remark


def _texts(rules: Iterable[SeedRule]) -> str:
    """Return the texts that rules look for, by the way in which they compare."""
    ways = groupby(rules, lambda rule: rule.match)
    return "; ".join(
        f"{way} {', '.join(f'`{rule.text}`' if rule.text else 'nothing' for rule in same)}" for way, same in ways
    )
