"""Intervals and comparisons as expressions on columns: nothing here reads data."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Z_95 = 1.959964
# Makes the median absolute deviation of normal data its standard deviation.
MAD_TO_SIGMA = 1.4826
USUAL_DAYS = 7
MIN_USUAL_DAYS = 3


def wilson_low(events: Column, total: Column) -> Column:
    """Lower end of the 95 % Wilson score interval of a rate. 0 events have exactly 0, whatever rounding says."""
    return F.when(events == 0, F.lit(0.0)).otherwise(_centre(events, total) - _half_width(events, total))


def wilson_high(events: Column, total: Column) -> Column:
    return F.when(events == total, F.lit(1.0)).otherwise(_centre(events, total) + _half_width(events, total))


def _centre(events: Column, total: Column) -> Column:
    return (events + Z_95**2 / 2) / (total + Z_95**2)


def _half_width(events: Column, total: Column) -> Column:
    variance = events * (total - events) / total + Z_95**2 / 4
    return Z_95 * F.sqrt(variance) / (total + Z_95**2)


def median_of(values: Column) -> Column:
    """Median of an array of numbers; null when it is empty."""
    ordered, size = F.sort_array(values), F.size(values)
    lower = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
    upper = F.get(ordered, F.floor(size / 2).cast("int"))
    return F.when(size > 0, (lower + upper) / 2)


def with_usual(rows: DataFrame, history: DataFrame, keys: Sequence[str], value: str) -> DataFrame:
    """``rows`` with what ``value`` was on the seven days before: ``usual`` (median) and ``deviation`` (median absolute
    deviation), both null with fewer than three days.

    ``history`` has one row per day and ``keys`` at most, and may hold days of ``rows`` themselves.
    """
    before = history.select(*keys, F.col("day").alias("_day"), F.col(value).alias("_value"))
    same_key = [rows[key].eqNullSafe(before[key]) for key in keys]
    since = F.date_sub(rows["day"], USUAL_DAYS)
    is_before = (before["_day"] >= since) & (before["_day"] < rows["day"])
    joined = rows.select("day", *keys).distinct().alias("r")
    values = (
        rows.select("day", *keys)
        .join(before, on=[*same_key, is_before], how="inner")
        .groupBy(rows["day"], *[rows[key] for key in keys])
        .agg(F.collect_list("_value").alias("_values"))
        .where(F.size("_values") >= MIN_USUAL_DAYS)
        .withColumn("usual", median_of(F.col("_values")))
        .withColumn("deviation", median_of(F.transform("_values", lambda v: F.abs(v - F.col("usual")))))
        .drop("_values")
    )
    del joined
    known = values.select(F.col("day").alias("_day"), *[F.col(k).alias(f"_{k}") for k in keys], "usual", "deviation")
    same = [rows["day"] == known["_day"], *[rows[key].eqNullSafe(known[f"_{key}"]) for key in keys]]
    return rows.join(known, on=same, how="left").drop("_day", *[f"_{key}" for key in keys])


def scale(usual: Column, deviation: Column, total: Column) -> Column:
    """Standard deviation to expect of a rate of ``total`` events: what the days before show, but never less than chance
    alone gives. Half an event is added, so that a rate that was always 0 has a scale, too.
    """
    smoothed = (usual * total + 0.5) / (total + 1)
    chance = F.sqrt(smoothed * (1 - smoothed) / total)
    return F.greatest(MAD_TO_SIGMA * deviation, chance)
