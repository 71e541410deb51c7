"""How we measure: kinds of metrics that prometheus_client does not have, and counting by the batch.

What is measured each app names in its `metrics.py`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import transaction
from prometheus_client import Counter as Metric
from prometheus_client import Histogram
from prometheus_client.metrics_core import GaugeMetricFamily

Labels = tuple[str, ...]


class BatchHistogram(Histogram):
    """One write per bucket that a batch falls into, where `observe` makes two per value."""

    def observe_all(self, values: Iterable[float]) -> None:
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
class StoredGauge:
    """What the database knows by itself, asked when somebody looks.

    ``sql`` returns rows of the labels, in their order, and the value; a value that is null is left out. It must stay
    fast however large the tables grow: partial indexes in their own order, and a limit.
    """

    name: str
    documentation: str
    sql: str
    labelnames: tuple[str, ...] = ()

    def family(self, rows: Iterable[Sequence[object]]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labelnames)
        for *labels, value in rows:
            if value is not None:
                family.add_metric([str(label) for label in labels], float(str(value)))
        return family


def count(metric: Metric, facts: Iterable[Labels]) -> None:
    """Add what a batch led to once it is committed, one addition per set of labels. Counting never fails its caller."""
    counts = Counter(facts)
    if counts:
        transaction.on_commit(partial(_add, metric, counts), robust=True)


def _add(metric: Metric, counts: Mapping[Labels, int]) -> None:
    for labels, number in counts.items():
        metric.labels(*labels).inc(number)


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str) -> None:
    """The values of a batch, once it is committed."""
    child = histogram.labels(*labels) if labels else histogram
    transaction.on_commit(partial(child.observe_all, list(values)), robust=True)
