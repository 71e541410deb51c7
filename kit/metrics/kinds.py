"""Gauges whose values are not counted, but read from a server or the database when metrics are collected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class AskedGauge:
    """A gauge whose value is read from a server when metrics are collected."""

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
