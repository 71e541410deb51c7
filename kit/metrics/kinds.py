"""Gauges that nobody counts: a server or the database knows their value, and is asked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import GaugeMetricFamily


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
