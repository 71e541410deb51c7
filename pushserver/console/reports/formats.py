"""Formats of figures on pages and in mails. CSV files have unformatted figures."""

from math import sqrt

NOTHING = "-"
Z_95 = 1.959963984540054


def plain(value: object) -> object:
    """Return a text, a day, or whether something is so."""
    return "yes" if value is True else value or NOTHING


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Return a share in percent, with more digits for a small share: 12.3 %, 0.12 %, 0.0034 %."""
    if value is None:
        return NOTHING
    size = abs(value) * 100
    digits = 1 if size >= 0.995 or size == 0 else 2 if size >= 0.01 else 4
    return f"{value * 100:.{digits}f} %"


def points(value: float | None) -> str:
    """Return a difference of two rates in percentage points."""
    return NOTHING if value is None else f"{value * 100:+.2f}"


def interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{percent(low)} to {percent(high)}"


def milliseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 600_000 else f"{value / 60_000:.0f} min"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def wilson(events: int, total: int) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % Wilson interval of a rate, for sums of rows, as `jobs.reports.statistics` computes it."""
    if not total:
        return None, None
    rate, z2 = events / total, Z_95**2
    middle = (rate + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 * sqrt(rate * (1 - rate) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return middle - half if events else 0.0, middle + half if events < total else 1.0
