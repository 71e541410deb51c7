"""Kinds of metrics that prometheus_client does not have."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.utils import floatToGoString


class BatchHistogram(Histogram):
    """A histogram that makes one write per bucket that a batch falls into, where `observe` makes two per value."""

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

    def bucket_of(self, value: float, labels: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the bucket of a value as samples name it: its name, and its labels in the order of their names."""
        bound = floatToGoString(self._upper_bounds[bisect_left(self._upper_bounds, value)])  # type: ignore[no-untyped-call]
        named = dict(zip(self._labelnames, labels, strict=True)) | {"le": bound}
        return f"{self._name}_bucket", tuple(sorted(named.items()))


@dataclass(frozen=True, slots=True)
class AskedGauge:
    """A gauge that nobody counts, because a server knows its value and is asked when metrics are collected."""

    name: str
    documentation: str
    labelnames: tuple[str, ...] = ()

    def family(self, rows: Iterable[Sequence[object]]) -> GaugeMetricFamily:
        """Return the values in Prometheus's form. ``rows`` hold the labels, in their order, and the value; a value of
        None is left out.
        """
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labelnames)
        for *labels, value in rows:
            if value is not None:
                family.add_metric([str(label) for label in labels], float(str(value)))
        return family


@dataclass(frozen=True, slots=True)
class StoredGauge(AskedGauge):
    """A gauge whose value the database knows. ``sql`` is fast however large the tables are, by partial indexes or a
    limit.
    """

    sql: str = field(kw_only=True)
