"""Counting what a batch led to: in sums, and not before it is committed."""

from collections import Counter
from collections.abc import Iterable, Mapping

from django.db import transaction
from prometheus_client import Counter as Metric

from kit.metrics import exemplars
from kit.metrics.kinds import BatchHistogram
from kit.tracing.steps import is_on

Labels = tuple[str, ...]


def count(metric: Metric, facts: Iterable[Labels] | Mapping[Labels, int]) -> None:
    """Add what a batch led to once it is committed, one addition per set of labels.

    Counting never fails its caller. ``facts`` are the labels of each fact, or the number of facts by labels.
    """
    counts = Counter(facts)
    if counts:
        transaction.on_commit(lambda: _add(metric, counts), robust=True)


def _add(metric: Metric, counts: Mapping[Labels, int]) -> None:
    for labels, number in counts.items():
        metric.labels(*labels).inc(number)


def observe(histogram: BatchHistogram, values: Iterable[float], *labels: str, of: Iterable[bytes] = ()) -> None:
    """Add the values of a batch to a histogram, once the batch is committed.

    ``of`` are the keys by which the messages that the values are of are traced: those are examples of their bucket.
    """
    kept = list(values)
    if kept:
        transaction.on_commit(lambda: _observe(histogram, kept, labels), robust=True)
        if is_on():
            examples = list(exemplars.of(kept, of))
            transaction.on_commit(lambda: exemplars.keep(histogram, labels, examples), robust=True)


def _observe(histogram: BatchHistogram, values: Iterable[float], labels: Labels) -> None:
    (histogram.labels(*labels) if labels else histogram).observe_all(values)
