"""Intervals and comparisons as expressions on columns. Nothing here reads data."""

from collections.abc import Mapping, Sequence
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.tables import MIN_USUAL_DAYS, USUAL_DAYS

Z_95 = 1.959964
# The factor that turns the median absolute deviation of normal data into its standard deviation.
MAD_TO_SIGMA = 1.4826


def wilson_low(events: Column, total: Column) -> Column:
    """Return the lower end of the 95 % Wilson score interval of a rate. It is exactly 0 for 0 events."""
    return F.when(events == 0, F.lit(0.0)).otherwise(_centre(events, total) - _half_width(events, total))


def wilson_high(events: Column, total: Column) -> Column:
    """Return the upper end of the 95 % Wilson score interval of a rate. It is exactly 1 for a rate of 1."""
    return F.when(events == total, F.lit(1.0)).otherwise(_centre(events, total) + _half_width(events, total))


def _centre(events: Column, total: Column) -> Column:
    return (events + Z_95**2 / 2) / (total + Z_95**2)


def _half_width(events: Column, total: Column) -> Column:
    variance = events * (total - events) / total + Z_95**2 / 4
    return Z_95 * F.sqrt(variance) / (total + Z_95**2)


def of_day(values: Mapping[date, object]) -> Column:
    """Return the value for the day of a row."""
    return F.create_map(*[F.lit(each) for pair in values.items() for each in pair])[F.col("day")]


def median_of(values: Column) -> Column:
    """Return the median of an array of numbers. It is null for an empty array."""
    ordered, size = F.sort_array(values), F.size(values)
    lower = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
    upper = F.get(ordered, F.floor(size / 2).cast("int"))
    return F.when(size > 0, (lower + upper) / 2)


def with_usual(
    rows: DataFrame, history: DataFrame, keys: Sequence[str], value: str, *, cell: Sequence[str] = ()
) -> DataFrame:
    """Return ``rows`` with the statistics of ``value`` on the seven days before.

    ``usual`` is the median and ``deviation`` the median absolute deviation, both null with fewer than three days.
    ``usual_days`` is the number of days. ``history`` has at most one row per day and ``keys``, and may have the days of
    ``rows``, too. ``cell`` names some of the keys: a day with any row of the cell counts as 0 for a key without a row.
    """
    cell = cell or keys
    days = history.groupBy(*cell).agg(F.collect_set("day").alias("days"))
    values = history.groupBy(*keys).agg(F.map_from_entries(F.collect_list(F.struct("day", value))).alias("values"))
    near = F.filter("days", lambda day: day.between(F.date_sub("day", USUAL_DAYS), F.date_sub("day", 1)))
    seen = F.transform(near, lambda day: F.coalesce(F.try_element_at("values", day).cast("double"), F.lit(0.0)))
    usual = F.when(F.size("seen") >= MIN_USUAL_DAYS, median_of(F.col("seen")))
    deviation = median_of(F.transform("seen", lambda each: F.abs(each - F.col("usual"))))
    joined = rows.join(days, on=[*cell], how="left").join(values, on=[*keys], how="left")
    compared = joined.withColumn("seen", F.coalesce(seen, F.array().cast("array<double>"))).withColumn("usual", usual)
    return compared.withColumn("deviation", deviation).select(
        *rows.columns, "usual", "deviation", F.size("seen").alias("usual_days")
    )


def scale(usual: Column, deviation: Column, total: Column) -> Column:
    """Return the expected standard deviation of a rate of ``total`` events.

    It is that of the days before, but never less than the binomial one. Half an event is added, so that a rate that was
    always 0 has a scale, too.
    """
    smoothed = (usual * total + 0.5) / (total + 1)
    chance = F.sqrt(smoothed * (1 - smoothed) / total)
    return F.greatest(MAD_TO_SIGMA * deviation, chance)
