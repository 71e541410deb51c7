"""Histograms that take the values of a batch at once."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from prometheus_client import Histogram


class BatchHistogram(Histogram):
    """One write per bucket that a batch falls into, where `observe` makes two per value."""

    def observe_all(self, values: Iterable[float]) -> None:
        self._raise_if_not_observable()
        counts: Counter[int] = Counter()
        total = 0.0
        for value in values:
            counts[bisect_left(self._upper_bounds, value)] += 1
            total += value
        for position, count in counts.items():
            self._buckets[position].inc(count)
        if counts:
            self._sum.inc(total)
