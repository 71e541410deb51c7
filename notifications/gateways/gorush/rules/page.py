"""The page of the error rules: `manage.py error_rules_catalogue > docs/error-rules.md`. The module is pure."""

from collections.abc import Iterator

from notifications.gateways.gorush.advice import ADVICE
from notifications.gateways.gorush.rules.file import SeedRule, seed_rules

PLATFORMS = {"ios": "Apple", "android": "Firebase", "any": "gorush"}
HEAD = """\
# Error rules

For operators: how the server reads an error that gorush reports, and what to do about it. This page is made from the
code (`manage.py error_rules_catalogue`). The console has the rules in use under *Error rules*, with those of operators.

The first rule that matches decides, from top to bottom; upper and lower case are the same. [Delivery](delivery.md) says
what follows from each class. A *guarded* rule also matches tokens that are fine while the set-up is wrong. A text
without a rule is `transient`, and listed under *Unknown errors*.

## What to do about a code

A code that is not in this table needs no operator: the token is dead, or the push can never be sent.

| codes | what to do |
| --- | --- |
"""


def page() -> str:
    """Return the whole page in Markdown."""
    rules = seed_rules()
    sections = [line for platform, title in PLATFORMS.items() for line in _section(platform, title, rules)]
    return HEAD + "\n".join([*_advices(), "", *sections])


def _advices() -> Iterator[str]:
    for advice in dict.fromkeys(ADVICE.values()):
        codes = ", ".join(f"`{code}`" for code in sorted(ADVICE) if ADVICE[code] == advice)
        yield f"| {codes} | {advice} |"


def _section(platform: str, title: str, rules: tuple[SeedRule, ...]) -> Iterator[str]:
    yield from (f"## Errors of {title}", "", "| text | class | code | remark |", "| --- | --- | --- | --- |")
    yield from (_row(rule) for rule in rules if rule.platform == platform)
    yield ""


def _row(rule: SeedRule) -> str:
    text = f"{rule.match} `{rule.text}`" if rule.text else "an empty text"
    pause = f"retried after {rule.retry_base_seconds} s" if rule.retry_base_seconds else ""
    remark = "; ".join(filter(None, (rule.remark, "guarded" if rule.is_guarded else "", pause)))
    return f"| {text} | `{rule.outcome}` | `{rule.code}` | {remark} |"
