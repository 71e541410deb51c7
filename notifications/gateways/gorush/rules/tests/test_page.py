"""docs/error-rules.md has every rule of the file and every code of an advice; tests/test_reference.py compares it."""

import re

from notifications.gateways.gorush.advice import ADVICE
from notifications.gateways.gorush.rules.file import seed_rules
from notifications.gateways.gorush.rules.page import page


def test_the_page_has_each_rule_in_its_order_and_each_code_with_its_advice() -> None:
    rows = re.findall(r"^\| (?:exact|prefix|contains) `(.*)` \| `(\w+)` \| `(\w+)` \|", page(), re.MULTILINE)
    wanted = [(rule.text, rule.outcome, rule.code) for rule in seed_rules() if rule.text]
    assert sorted(rows) == sorted(wanted)
    assert rows[:20] == wanted[:20]
    advised = re.findall(r"^\| (`[^|]*`) \| ([^|]*\.) \|$", page(), re.MULTILINE)
    assert {code: advice for codes, advice in advised for code in re.findall(r"`(\w+)`", codes)} == ADVICE


def test_no_text_breaks_the_table() -> None:
    assert [rule.key for rule in seed_rules() if re.search(r"[|`\n]", rule.text + rule.remark)] == []
