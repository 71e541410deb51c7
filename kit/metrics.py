"""Counting of metrics, in batches: one addition per metric and set of labels, made after the commit of the batch.

Each app defines its metrics in its own `metrics.py`. Every process counts in files of its own (`kit.exposition`), so
counting needs no lock and no other server.

An exemplar is the newest value of a traced message in a bucket of a histogram, with the id of its trace.
prometheus_client has none for files. So each process writes its own into a file beside its metrics, at most every few
seconds. Without tracing there is no such file.

See docs/monitoring/README.md.
"""

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction
from prometheus_client import Counter as Metric
from prometheus_client import Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from kit.db.base import Written
from kit.processes import once
from kit.tracing import is_on, trace_of

log = structlog.get_logger(__name__)
Labels = tuple[str, ...]
# A bucket as samples identify it: by name, and by labels sorted by their names.
Bucket = tuple[str, tuple[tuple[str, str], ...]]

EXEMPLARS_WRITTEN_EVERY_SECONDS = 5.0
# Exemplars older than this, several times the usual period of scrapes, say nothing about the present.
EXEMPLARS_KEPT_SECONDS = 600.0


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

    def bucket_of(self, value: float, labels: Sequence[str]) -> Bucket:
        """Return the bucket of a value."""
        bound = floatToGoString(self._upper_bounds[bisect_left(self._upper_bounds, value)])  # type: ignore[no-untyped-call]
        named = dict(zip(self._labelnames, labels, strict=True)) | {"le": bound}
        return f"{self._name}_bucket", tuple(sorted(named.items()))


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


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str, of: Iterable[bytes] = ()) -> None:
    """Add the values of a batch to a histogram after the commit.

    ``of`` has the trace key of each value's message. Values of traced messages become exemplars of their buckets.
    """
    kept = list(values)
    if not kept:
        return
    _once_committed(lambda: (histogram.labels(*labels) if labels else histogram).observe_all(kept))
    if is_on():
        keys = list(of)
        _once_committed(lambda: _keep_exemplars(histogram, labels, kept, keys))


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


class Exemplars:
    """The exemplars of this process."""

    def __init__(self) -> None:
        self.by_bucket: dict[Bucket, tuple[float, float, str]] = {}
        self._written_at = float("-inf")

    def write(self) -> None:
        """Write the file, unless that was done seconds ago. It is replaced atomically, so readers see all of it."""
        if monotonic() < self._written_at + EXEMPLARS_WRITTEN_EVERY_SECONDS:
            return
        self._written_at = monotonic()
        file: Path = settings.METRICS_DIR / f"exemplars_{os.getpid()}.json"
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps([[*bucket, *example] for bucket, example in self.by_bucket.items()]))
        unfinished.replace(file)


@once
def own_exemplars() -> Exemplars:
    """Return the exemplars of this process."""
    return Exemplars()


def _keep_exemplars(histogram: BatchHistogram, labels: Labels, values: list[float], keys: list[bytes]) -> None:
    own = own_exemplars()
    for value, key in zip(values, keys, strict=False):
        if key and (trace := trace_of(key)):
            own.by_bucket[histogram.bucket_of(value, labels)] = value, time(), trace.id.hex()
    if own.by_bucket:
        own.write()


def read_exemplars(folder: Path) -> dict[Bucket, Exemplar]:
    """Return the newest exemplar of each bucket over all processes."""
    found = (row for file in folder.glob("exemplars_*.json") for row in _rows_of(file))
    newest = sorted((at, trace_id, value, name, labels) for name, labels, value, at, trace_id in found)
    return {
        (name, tuple((key, text) for key, text in labels)): Exemplar({"trace_id": trace_id}, value, at)
        for at, trace_id, value, name, labels in newest
        if at > time() - EXEMPLARS_KEPT_SECONDS
    }


def _rows_of(file: Path) -> Iterator[list[Any]]:
    """Yield the exemplars of a file, or none of a broken one, which its process writes anew within seconds."""
    try:
        yield from json.loads(file.read_text())
    except ValueError:
        return
