"""Counting in batches: one addition per metric and set of labels, made after the commit of the batch."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from django.db import connection, transaction
from prometheus_client import Counter as Metric
from prometheus_client import Histogram
from prometheus_client.utils import floatToGoString

from kit.db.postgresql.base import Written
from kit.metrics import exemplars
from kit.tracing.spans import is_on

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

    def bucket_of(self, value: float, labels: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the bucket of a value as samples identify it: by name, and by labels sorted by their names."""
        bound = floatToGoString(self._upper_bounds[bisect_left(self._upper_bounds, value)])  # type: ignore[no-untyped-call]
        named = dict(zip(self._labelnames, labels, strict=True)) | {"le": bound}
        return f"{self._name}_bucket", tuple(sorted(named.items()))


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


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str, of: Iterable[bytes] = ()) -> None:
    """Add the values of a batch to a histogram after the commit.

    ``of`` has the trace key of each value's message. Values of traced messages become exemplars of their buckets.
    """
    kept = list(values)
    if kept:
        _once_committed(lambda: _observe(histogram, kept, labels))
        if is_on():
            examples = [(histogram.bucket_of(value, labels), value, trace) for value, trace in exemplars.of(kept, of)]
            _once_committed(lambda: exemplars.keep(examples))


def _observe(histogram: BatchHistogram, values: Iterable[float], labels: Labels) -> None:
    (histogram.labels(*labels) if labels else histogram).observe_all(values)
