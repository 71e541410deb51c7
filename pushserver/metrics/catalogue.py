"""Catalogue of the metrics of all apps: `python manage.py metrics_catalogue > docs/metrics.md`."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from prometheus_client.metrics import MetricWrapperBase

import notifications.metrics
import pushserver.console.notifications.gauges
import registrations.metrics
from kit.telemetry import AskedGauge, StoredGauge
from pushserver.console.parts import parts
from pushserver.metrics import names

SOURCES = {
    "Requests and delivery": notifications.metrics,
    "Backlog of delivery": pushserver.console.notifications.gauges,
    "Registrations and queries": registrations.metrics,
    "Servers and queues": names,
}
ADVICE = " When it moves: "
HEAD = """\
# Metrics

What `/metrics` says, and what an operator does when it moves. This page is made from the code
(`manage.py metrics_catalogue`); how metrics are collected is in [monitoring/README.md](monitoring/README.md).
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric under its name in Prometheus, where counters end in _total."""

    name: str
    kind: str
    meaning: str
    advice: str
    labels: tuple[str, ...]


def sources() -> dict[str, object]:
    """Return the modules with metrics by heading, those of gateways and bridges first."""
    own = {title: import_module(path) for part in parts() for title, path in part.metric_modules.items()}
    return {**own, **SOURCES}


def entries(source: object) -> Iterator[Entry]:
    """Yield the metrics of one module."""
    for metric in vars(source).values():
        if isinstance(metric, AskedGauge):
            yield _entry(metric.name, "gauge", metric.documentation, metric.labelnames)
        elif isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield _entry(name, family.type, family.documentation, metric._labelnames)  # noqa: SLF001 - there is no public name for it


def _entry(name: str, kind: str, documentation: str, labels: tuple[str, ...]) -> Entry:
    meaning, _, advice = documentation.partition(ADVICE)
    return Entry(name, kind, meaning, advice[:1].upper() + advice[1:], tuple(labels))


def stored_gauges() -> list[StoredGauge]:
    """Return the gauges of all apps that are read from the database."""
    return [gauge for source in sources().values() for gauge in vars(source).values() if isinstance(gauge, StoredGauge)]


def page() -> str:
    """Return the whole page in Markdown."""
    return "\n".join([HEAD, *(line for title, source in sources().items() for line in _section(title, source))])


def _section(title: str, source: object) -> Iterator[str]:
    yield from (
        f"## {title}",
        "",
        "| metric | kind, labels | what it is | when it moves |",
        "| --- | --- | --- | --- |",
    )
    for entry in entries(source):
        labels = ", ".join([entry.kind, *(f"`{label}`" for label in entry.labels)])
        yield f"| `{entry.name}` | {labels} | {entry.meaning} | {entry.advice} |"
    yield ""
