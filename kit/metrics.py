"""Counting of metrics, in batches: one addition per metric and set of labels, made after the commit of the batch.

Each app defines its metrics in its own `metrics.py`. Every process counts in files of its own, so counting needs no
lock and no other server. `kit.exposition` adds them up.

See docs/monitoring/README.md.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from django.db import connection, transaction
from prometheus_client import Counter as Metric
from prometheus_client import Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

from kit.db.base import Written

log = structlog.get_logger(__name__)
Labels = tuple[str, ...]


class BatchHistogram(Histogram):
    """A histogram with one write per bucket for all values of a batch, where `observe` makes two writes per value."""

    def observe_all(self, values: Iterable[float]) -> None:
        """Add all values."""
        counts: Counter[int] = Counter()
        total = 0.0
        for value in values:
            counts[bisect_left(self._upper_bounds, value)] += 1
            total += value
        for position, count in counts.items():
            self._buckets[position].inc(count)
        if counts:
            self._sum.inc(total)


@dataclass(frozen=True, slots=True)
class AskedGauge:
    """A gauge whose value is not counted, but read from a server when metrics are collected."""

    name: str
    documentation: str
    labelnames: tuple[str, ...] = ()

    def family(self, rows: Iterable[Sequence[object]]) -> GaugeMetricFamily:
        """Return the values as a Prometheus family. A row of ``rows`` has the labels in their order, and the value.

        Rows with the value None are left out.
        """
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labelnames)
        for *labels, value in rows:
            if value is not None:
                family.add_metric([str(label) for label in labels], float(str(value)))
        return family


@dataclass(frozen=True, slots=True)
class StoredGauge(AskedGauge):
    """A gauge whose value a query reads. ``sql`` must be fast for tables of any size, by a partial index or a limit."""

    sql: str = field(kw_only=True)


def count(metric: Metric, facts: Iterable[Labels] | Mapping[Labels, int]) -> None:
    """Add the facts of a batch to a counter after the commit, with one addition per set of labels.

    ``facts`` are the labels of each fact, or the number of facts by labels. Errors of counting never reach the caller.
    """
    counts = Counter(facts)
    if counts:
        _once_committed(lambda: _add(metric, counts))


def count_returned(metric: Metric, written: Written) -> None:
    """Add the facts whose labels a statement returns. See `count`."""
    _once_committed(lambda: _add(metric, Counter(written.rows())))


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str) -> None:
    """Add the values of a batch to a histogram after the commit."""
    if kept := list(values):
        _once_committed(lambda: (histogram.labels(*labels) if labels else histogram).observe_all(kept))


def _once_committed(add: Callable[[], None]) -> None:
    """Call ``add`` after the commit, or at once outside of a transaction.

    The latter needs no connection, so that failures of the database can be counted.
    """
    if connection.in_atomic_block:
        transaction.on_commit(add, robust=True)
        return
    try:
        add()
    except Exception as error:  # noqa: BLE001 - counting must not fail work that is done
        log.error("not_counted", error=type(error).__name__)  # noqa: TRY400 - its text may quote a label


def _add(metric: Metric, counts: Mapping[Labels, int]) -> None:
    for labels, number in counts.items():
        (metric.labels(*labels) if labels else metric).inc(number)
