"""Metrics, alerts, dashboard and runbooks fit each other. Alerts and dashboard use metrics that exist, and each alert
and each indicator has its runbook.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import orjson
import pytest
import yaml
from prometheus_client.metrics import Gauge

from embedded.supervisor.processes import PROJECT
from pushserver.console.health.indicators import kinds_of
from pushserver.console.parts import parts
from pushserver.metrics import entries, sources

DOCS = PROJECT / "docs"
ENTRIES = list(chain.from_iterable(map(entries, sources().values())))
LABELS = {entry.name: set(entry.labels) for entry in ENTRIES}
ALERTS_FILE, DASHBOARD_FILE = DOCS / "monitoring" / "alerts.yml", DOCS / "monitoring" / "dashboard.json"
GROUPS = yaml.safe_load(ALERTS_FILE.read_text(encoding="utf-8"))["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
DASHBOARD = orjson.loads(DASHBOARD_FILE.read_bytes())
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in (DOCS / "runbooks").glob("*.md")}
# Reason why each label has few values. A label that is not here may have any number.
BOUNDED_LABELS = {
    "a part of the configuration": {"node", "pubsub_topic", "queue", "gateway"},
    "a word of ours": {
        *("dialect", "effect", "fault", "form", "indicator", "kind", "limit", "loop", "novelty", "outcome", "path"),
        *("platform", "proven", "state", "type", "verdict"),
    },
    "a word of ours about what is wrong": {"reason", "code", "cause"},
    "a step of the canary": {"link"},
    "what was delivered to, else other": {"app"},
    "what our own nodes say they are": {"version"},
}
# Alerts with their own page, although the page of an indicator covers the same fault.
ALSO = {
    "PushServerNotScraped": "PushServerDatabaseDown",
    "PushServerCanaryMissing": "PushServerCanaryBroken",
    "PushServerXmppCanaryMissing": "PushServerXmppCanaryBroken",
    "PushServerChannelPaused": "PushServerChannelTripped",
}
HEADINGS = ["Meaning", "Diagnosis", "Mitigation", "Verification"]
IN_NO_ALERT_OR_PANEL = {
    "pushserver_bridge_message_skew_seconds",
    "pushserver_bridge_node_healthy",
    "pushserver_bridge_node_mesh_peers",
    "pushserver_bridge_node_version_timestamp_seconds",
    "pushserver_bridge_store_pages_total",
    "pushserver_bridge_store_window_seconds",
    "pushserver_inbox_envelopes_total",
    "pushserver_requests_total",
}


def test_every_metric_has_a_meaning_an_advice_a_name_of_its_own_and_few_values_of_its_labels() -> None:
    assert len(LABELS) == len(ENTRIES) > 40
    for entry in ENTRIES:
        assert re.fullmatch(r"pushserver_[a-z]+(_[a-z]+)*", entry.name)
        assert entry.name.endswith("_total") == (entry.kind == "counter")
        assert min(len(entry.meaning), len(entry.advice)) > 15, entry.name
        assert not re.search(r"[|\n]", entry.meaning + entry.advice), "they stand in a table"
        assert set(entry.labels) <= set().union(*BOUNDED_LABELS.values()), entry.name
    gauges = [metric for source in sources().values() for metric in vars(source).values() if isinstance(metric, Gauge)]
    assert len(gauges) > 10
    assert all(gauge._multiprocess_mode.startswith("live") for gauge in gauges), "one of an ended process is forgotten"


def _known_names() -> Iterator[str]:
    for entry in ENTRIES:
        yield entry.name
        if entry.kind == "histogram":
            yield from (f"{entry.name}{suffix}" for suffix in ("_bucket", "_count", "_sum"))


def _names(expression: str) -> set[str]:
    return set(re.findall(r"\bpushserver_\w+", expression))


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_an_alert_asks_for_metrics_and_labels_that_exist_and_leads_to_its_page(rule: dict[str, Any]) -> None:
    expression, annotations = rule["expr"], rule["annotations"]
    assert _names(expression)
    assert _names(expression + annotations["what_to_do"]) <= set(_known_names())
    for name, selector in re.findall(r"(pushserver_\w+)\{([^}]*)\}", expression):
        own = LABELS.get(name, LABELS.get(re.sub(r"_(bucket|count|sum)$", "", name), set())) | {"le"}
        assert set(re.findall(r"(\w+)\s*=~?", selector)) <= own
    assert annotations["summary"]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert annotations["runbook"] == f"docs/runbooks/{rule['alert']}.md"


def test_an_alert_about_an_indicator_leads_to_its_page() -> None:
    for name, rule in ALERTS.items():
        for operator, wanted in re.findall(r'pushserver_indicator_state\{indicator(=~?)"([^"]*)"\}', rule["expr"]):
            pattern = re.compile(wanted if operator == "=~" else re.escape(wanted))
            about = {
                kind for kind in kinds_of(parts()) if pattern.fullmatch(kind.id) or pattern.fullmatch(f"{kind.id}-a:1")
            }
            assert {kind.runbook for kind in about} == {ALSO.get(name, name)}, name


def test_the_dashboard_asks_for_metrics_that_exist_and_each_panel_has_a_place_of_its_own() -> None:
    panels = DASHBOARD["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 30
    assert all(_names(expression) for expression in expressions)
    assert set().union(*map(_names, expressions)) <= set(_known_names())
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len({panel["id"] for panel in panels}) == len(places) == len(panels)
    used = _names(ALERTS_FILE.read_text() + DASHBOARD_FILE.read_text())
    assert {name for name in LABELS if not any(each.startswith(name) for each in used)} <= IN_NO_ALERT_OR_PANEL


def test_each_alert_and_each_indicator_has_a_page_and_each_page_an_alert_or_an_indicator() -> None:
    assert set(PAGES) == set(ALERTS) | {kind.runbook for kind in kinds_of(parts())}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_who_is_woken_what_it_means_what_to_look_at_what_to_do_and_how_to_be_sure(name: str) -> None:
    first, *parts = re.split(r"^## ", PAGES[name], flags=re.MULTILINE)
    rule = ALERTS.get(name)
    words = {"page": "Wakes somebody.", "ticket": "It can wait."}
    woken = words[rule["labels"]["severity"]] if rule else "No alert of its own."
    title, *others = first.splitlines()[:3]
    assert others == ["", woken]
    assert title.startswith("# ")
    assert " " in title.removeprefix("# ")
    assert [part.splitlines()[0] for part in parts] == HEADINGS
    assert all(len(part.split()) > 2 for part in parts)
