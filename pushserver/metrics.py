"""`/metrics` of the web server, and the catalogue of the metrics of all apps.

The page has the counts of the processes of this machine, the indicators, and the gauges of database and queues. These
are read when metrics are collected, at most every KEPT_SECONDS. Each read opens its own connections with short
timeouts: while a server hangs, metrics report that and do not hang too.

See docs/metrics.md, which `manage.py reference metrics` writes.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module

import psycopg
import redis
import structlog
from django.conf import settings
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

import notifications.metrics
import pushserver.console.notifications.metrics
import registrations.metrics
from kit.exposition import Counted, is_authentic
from kit.processes import once
from kit.processes.starting import OWN_FAULT
from kit.telemetry import AskedGauge, StoredGauge
from pushserver.celery import QUEUES
from pushserver.console.health.recent import Recent
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import VALUES
from pushserver.console.parts import parts

__all__ = ["INDICATOR", "OWN_FAULT", "QUEUE_TASKS"]
log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 2
KEPT_SECONDS = 5.0
QUEUE_TASKS = AskedGauge(
    "pushserver_queue_tasks",
    "Tasks in a queue that no worker has fetched. "
    "When it moves: growing for minutes, its workers are too few or stuck. Messages are no tasks: they wait in tables.",
    ("queue",),
)
INDICATOR = AskedGauge(
    "pushserver_indicator_state",
    "Each health indicator: 0 while it is fine or off, 1 where somebody should look at it, 2 where somebody has to act "
    "now. An unknown one is missing. "
    "When it moves: the dashboard shows the fault, since when it exists, and the first step.",
    ("indicator",),
)
ADVICE = " When it moves: "
HEAD = """\
# Metrics

What `/metrics` says, and what an operator does when it moves. This page is made from the code
(`manage.py reference metrics`); how metrics are collected is in [monitoring/README.md](monitoring/README.md). Names of
counters end in `_total`.
"""


# The page -------------------------------------------------------------------------------------------------------------
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics.

    Without METRICS_TOKEN there is no such page, except with DEBUG.
    """
    if not settings.METRICS_TOKEN and not settings.DEBUG:
        raise Http404
    if settings.METRICS_TOKEN and not is_authentic(request.headers.get("Authorization", "")):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    # The collector names the format that it reads in the header.
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_everything()), content_type=content_type)


@once
def _everything() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Counted(settings.METRICS_DIR))
    registry.register(Stock())
    return registry


class Stock(Collector):
    """The indicators, and the gauges of database and broker, as prometheus_client collects them."""

    def __init__(self) -> None:
        self._recent = Recent(_ask, lambda: KEPT_SECONDS)

    def collect(self) -> list[Metric]:
        return self._recent.get()


def _ask() -> list[Metric]:
    return [_indicators(), *_ask_database(), *_ask_broker()]


def _indicators() -> Metric:
    found = take_snapshot(now=timezone.now()).indicators
    return INDICATOR.family((indicator.id, VALUES.get(indicator.state)) for indicator in found)


def _ask_database() -> Iterator[Metric]:
    """Yield the gauges from the database. The indicator of PostgreSQL has the reason if they are missing."""
    parameters = connection.get_connection_params() | {"connect_timeout": TIMEOUT_SECONDS, "cursor_factory": None}
    # Without a transaction, so that a failed query does not prevent the others.
    with suppress(psycopg.Error), closing(psycopg.connect(**parameters, autocommit=True)) as own:
        own.execute(f"SET statement_timeout = '{TIMEOUT_SECONDS}s'")
        yield from list(_ask_gauges(own))


def _ask_gauges(own: psycopg.Connection) -> Iterator[Metric]:
    """Yield the gauges up to the first that takes too long, because the next ones would take too long as well."""
    for gauge in stored_gauges():
        try:
            yield gauge.family(own.execute(gauge.sql.encode()))
        except psycopg.Error as error:
            log.warning("gauge_missing", gauge=gauge.name, error=type(error).__name__)
            if isinstance(error, psycopg.errors.QueryCanceled):
                return


def _ask_broker() -> Iterator[Metric]:
    options = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
    with suppress(redis.RedisError), closing(redis.Redis.from_url(settings.REDIS_URL, **options)) as client:
        yield QUEUE_TASKS.family([(queue, client.llen(queue)) for queue in QUEUES])


# The catalogue --------------------------------------------------------------------------------------------------------
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
    return {
        **own,
        "Requests and delivery": notifications.metrics,
        "Backlog of delivery": pushserver.console.notifications.metrics,
        "Registrations and queries": registrations.metrics,
        "Servers and queues": sys.modules[__name__],
    }


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
        "| metric, kind, labels | what it is | when it moves |",
        "| --- | --- | --- |",
    )
    for entry in entries(source):
        kind = [] if entry.kind == "counter" else [entry.kind]  # the name of a counter says so
        name = ", ".join([f"`{entry.name}`", *kind, *(f"`{label}`" for label in entry.labels)])
        yield f"| {name} | {entry.meaning} | {entry.advice} |"
    yield ""
