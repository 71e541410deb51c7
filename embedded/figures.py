"""Distributions of durations. The module does no I/O."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles in milliseconds.

    ``histogram`` has a pair for each bucket with values: its upper bound (None above the last one) and its count.
    """

    count: int
    p50: float
    p90: float
    p99: float
    max: float
    histogram: tuple[tuple[int | None, int], ...]


def distribution(milliseconds: Sequence[float]) -> Distribution | None:
    """Return the distribution of these values, or None when there are none."""
    if not milliseconds:
        return None
    ordered = sorted(milliseconds)
    counts = Counter(bisect_left(BUCKETS_MS, value) for value in ordered)
    bounds: tuple[int | None, ...] = (*BUCKETS_MS, None)
    return Distribution(
        count=len(ordered),
        p50=_percentile(ordered, 50),
        p90=_percentile(ordered, 90),
        p99=_percentile(ordered, 99),
        max=round(ordered[-1], 3),
        histogram=tuple((bounds[bucket], counts[bucket]) for bucket in sorted(counts)),
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank, which is always one of the measured values."""
    return round(ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 3)
