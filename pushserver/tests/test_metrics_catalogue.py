"""Every metric has an explanation, a name after the rules of Prometheus, and few label values. Alerts and dashboard use
existing metrics only.
"""

import re
from itertools import chain
from pathlib import Path

import orjson
import pytest
import yaml
from prometheus_client.metrics import Gauge

from pushserver.metrics.catalogue import entries, sources

DOCS = Path(__file__).parents[2] / "docs"
ENTRIES = list(chain.from_iterable(map(entries, sources().values())))
ALERTS = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = orjson.loads((DOCS / "monitoring" / "dashboard.json").read_bytes())
# Reason why each label has few values. A label that is not here may have any number.
BOUNDED_LABELS = {
    "a part of the configuration": {"node", "pubsub_topic", "queue", "gateway"},
    "a word of ours": {
        "path",
        "fault",
        "loop",
        "novelty",
        "outcome",
        "kind",
        "form",
        "verdict",
        "effect",
        "limit",
        "platform",
        "state",
        "type",
        "dialect",
        "indicator",
        "proven",
    },
    "a word of ours about what is wrong": {"reason", "code", "cause"},
    "a step of the canary": {"link"},
    "what was delivered to, else other": {"app"},
    "what our own nodes say they are": {"version"},
}
UNITS = ("_seconds", "_ratio")
# Gauges that count things have the name of these things.
THINGS = (
    "_routes",
    "_gateways",
    "_topics",
    "_peers",
    "_open",
    "_waiting",
    "_pending",
    "_channels",
    "_tasks",
    "_held",
    "_apps",
)
TRUTHS = ("_up", "_healthy", "_broken", "_state")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_metric_says_what_it_is_and_what_to_do(entry):
    assert entry.meaning.endswith(".")
    assert len(entry.meaning) > 15
    assert entry.advice.endswith(".")
    assert len(entry.advice) > 15
    assert not re.search(r"[|\n]", entry.meaning + entry.advice)
    assert not re.match(r"[^`\s]*[_/]", entry.advice), "the page begins it with a capital"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_metric_is_named_by_its_kind_and_unit(entry):
    suffixes = {"counter": ("_total",), "histogram": UNITS, "gauge": (*UNITS, *THINGS, *TRUTHS)}
    assert re.fullmatch(r"pushserver_[a-z]+(_[a-z]+)*", entry.name)
    assert entry.name.endswith(suffixes[entry.kind])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_label_has_few_values(entry):
    assert set(entry.labels) <= set().union(*BOUNDED_LABELS.values())


def test_no_two_metrics_share_a_name():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) > 40


@pytest.mark.parametrize("source", sources().values(), ids=lambda source: source.__name__)
def test_gauges_of_processes_that_ended_are_forgotten(source):
    gauges = [metric for metric in vars(source).values() if isinstance(metric, Gauge)]
    assert all(gauge._multiprocess_mode.startswith("live") for gauge in gauges)


def _known_names():
    for entry in ENTRIES:
        yield entry.name
        if entry.kind == "histogram":
            yield from (f"{entry.name}{suffix}" for suffix in ("_bucket", "_count", "_sum"))


def _names(expression):
    return set(re.findall(r"\bpushserver_\w+", expression))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_asks_for_metrics_that_exist_and_says_what_to_do(rule):
    assert _names(rule["expr"])
    assert _names(rule["expr"] + rule["annotations"]["what_to_do"]) <= set(_known_names())
    assert len(rule["annotations"]["what_to_do"]) > 20
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_selects_labels_that_its_metrics_have(rule):
    labels = {entry.name: set(entry.labels) for entry in ENTRIES}
    for name, selector in re.findall(r"(pushserver_\w+)\{([^}]*)\}", rule["expr"]):
        own = labels.get(name, labels.get(re.sub(r"_(bucket|count|sum)$", "", name), set())) | {"le"}
        assert set(re.findall(r"(\w+)\s*=~?", selector)) <= own


def test_the_dashboard_asks_for_metrics_that_exist():
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    assert all(_names(expression) for expression in expressions)
    assert set().union(*map(_names, expressions)) <= set(_known_names())


def test_every_panel_has_a_place_of_its_own():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(corners)) == len(corners)


def test_alerts_and_dashboard_together_use_nearly_every_metric():
    used = _names(
        (DOCS / "monitoring" / "alerts.yml").read_text() + (DOCS / "monitoring" / "dashboard.json").read_text()
    )
    unused = {entry.name for entry in ENTRIES if not any(name.startswith(entry.name) for name in used)}
    assert unused <= {
        "pushserver_bridge_message_skew_seconds",
        "pushserver_bridge_node_healthy",
        "pushserver_bridge_node_mesh_peers",
        "pushserver_bridge_node_version_timestamp_seconds",
        "pushserver_bridge_store_pages_total",
        "pushserver_bridge_store_window_seconds",
        "pushserver_inbox_envelopes_total",
        "pushserver_requests_total",
    }
