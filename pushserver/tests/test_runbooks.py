"""Each alert and each indicator has its runbook, and each runbook has the same four parts."""

import re

import pytest
import yaml

from embedded.supervisor.processes import PROJECT
from pushserver.indicators.judging import all_kinds

DOCS = PROJECT / "docs"
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in (DOCS / "runbooks").glob("*.md")}
GROUPS = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
OF_INDICATORS = {kind.runbook for kind in all_kinds()}
# Alerts with their own page, although the page of an indicator covers the same fault.
ALSO = {
    "PushServerNotScraped": "PushServerDatabaseDown",
    "PushServerCanaryMissing": "PushServerCanaryBroken",
    "PushServerXmppCanaryMissing": "PushServerXmppCanaryBroken",
    "PushServerChannelPaused": "PushServerChannelTripped",
}
HEADINGS = ["What it means", "What to look at", "What to do", "How to be sure"]


def test_each_alert_leads_to_its_page() -> None:
    assert {name: rule["annotations"].get("runbook") for name, rule in ALERTS.items()} == {
        name: f"docs/runbooks/{name}.md" for name in ALERTS
    }


def test_each_alert_and_each_indicator_has_a_page_and_each_page_an_alert_or_an_indicator() -> None:
    assert set(PAGES) == set(ALERTS) | OF_INDICATORS


def test_an_alert_about_an_indicator_leads_to_its_page() -> None:
    for name, rule in ALERTS.items():
        for operator, wanted in re.findall(r'pushserver_indicator_state\{indicator(=~?)"([^"]*)"\}', rule["expr"]):
            pattern = re.compile(wanted if operator == "=~" else re.escape(wanted))
            about = {kind for kind in all_kinds() if pattern.fullmatch(kind.id) or pattern.fullmatch(f"{kind.id}-a:1")}
            assert {kind.runbook for kind in about} == {ALSO.get(name, name)}, name


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_what_it_means_what_to_look_at_what_to_do_and_how_to_be_sure(name: str) -> None:
    first, *parts = re.split(r"^## ", PAGES[name], flags=re.MULTILINE)
    assert first.startswith(f"# {name}\n")
    assert [part.splitlines()[0] for part in parts] == HEADINGS
    assert all(len(part.split()) > 5 for part in parts)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_who_is_woken_as_the_alert_does(name: str) -> None:
    words = {"page": "Wakes somebody.", "ticket": "It can wait."}
    rule = ALERTS.get(name)
    expected = words[rule["labels"]["severity"]] if rule else "No alert of its own."
    assert PAGES[name].splitlines()[2] == expected


def test_the_start_page_names_every_page() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)", text))
    assert named == {file.stem for file in DOCS.glob("*.md")} - {"README"}
    assert set(re.findall(r"\]\(runbooks/([\w-]+)\.md\)", text)) == set(PAGES)
