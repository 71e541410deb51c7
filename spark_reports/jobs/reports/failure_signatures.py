"""Failure signatures: frequent, new and rising errors of gateways.

``events`` are failed attempts with the code (``code``), or the growth of an unknown text's count (``unknown``).
First and last seen go back as far as the reports of the thirty days before, for unknown texts as far as their counter.
Late data: counters of unknown texts are read at the export, so errors between midnight and the export count one day
early. A day that is exported after the next one is closed has no snapshot. Without the snapshot of the day before, only
texts that are new on the day are counted.
"""

from collections.abc import Mapping
from datetime import date

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_reports.jobs.reports.statistics import of_day, with_usual
from spark_reports.jobs.sources import union
from spark_reports.jobs.tables import NEW_AFTER_DAYS

KEY = ["source", "platform", "signature"]
RISING_FACTOR = 2
RISING_MIN = 10
KEPT = 200


def transform(
    error_rates: DataFrame,
    earlier_error_rates: DataFrame,
    unknown_errors: DataFrame,
    earlier: DataFrame,
    known_days: Mapping[date, int],
) -> DataFrame:
    """Return the signatures that are frequent, new or rising.

    ``known_days`` has the days of the run, with the number of the thirty days before each that are there.
    ``unknown_errors`` has snapshots of the run's days and of the days before. ``earlier`` has the rows of this report
    for the days before.
    """
    codes = union([of_codes(earlier_error_rates), of_codes(error_rates)])
    unknown = of_unknown_texts(unknown_errors)
    history = union([codes, unknown])  # on a day with other failures, a code without events counts as 0
    today = history.where(F.col("day").isin(*known_days))
    compared = with_usual(today, history, KEY, "events", cell=["source"])
    seen = with_first_seen(compared, union([_seen(history), _seen(earlier)]))
    return most_important(seen.withColumn("known_days", of_day(known_days)))


def of_codes(error_rates: DataFrame) -> DataFrame:
    """Return the number of failed attempts by code and day."""
    is_failed_attempt = F.col("hour").isNull() & (F.col("stage") == "dispatch") & F.col("is_failure")
    counted = error_rates.where(is_failed_attempt).groupBy("day", "platform", F.col("code").alias("signature"))
    return counted.agg(F.sum("events").alias("events")).select(
        "day",
        F.lit("code").alias("source"),
        "platform",
        "signature",
        "events",
        F.col("day").alias("first_seen_on"),
    )


def of_unknown_texts(snapshots: DataFrame) -> DataFrame:
    """Return the growth of each counter since the snapshot of the day before."""
    ordered = Window.partitionBy("platform", "signature").orderBy("day")
    is_next_day = F.lag("day").over(ordered) == F.date_sub("day", 1)
    first_seen_on = F.to_date("first_seen_at")
    is_new = first_seen_on >= F.col("day")
    grown = F.when(is_next_day, F.col("total") - F.lag("total").over(ordered)).when(is_new, F.col("total"))
    return (
        snapshots.withColumn("events", grown)
        .where(F.col("events") > 0)
        .select(
            "day",
            F.lit("unknown").alias("source"),
            "platform",
            "signature",
            "events",
            F.least(first_seen_on, F.col("day")).alias("first_seen_on"),
        )
    )


def _seen(rows: DataFrame) -> DataFrame:
    return rows.select(*KEY, F.col("day").alias("seen_day"), F.col("first_seen_on").alias("seen_on"))


def with_first_seen(today: DataFrame, seen: DataFrame) -> DataFrame:
    """Add the first day of each signature, and the last one before the row's own day."""
    is_earlier = F.col("seen_day") <= F.col("day")
    firsts = (
        today.select("day", *KEY)
        .join(seen, on=KEY, how="inner")
        .where(is_earlier)
        .groupBy("day", *KEY)
        .agg(
            F.min("seen_on").alias("first"),
            F.max(F.when(F.col("seen_day") < F.col("day"), F.col("seen_day"))).alias("last_before"),
        )
    )
    return today.drop("first_seen_on").join(firsts, on=["day", *KEY], how="inner")


def most_important(today: DataFrame) -> DataFrame:
    """Mark new and rising signatures, and keep the first KEPT of each day: rising ones, then the most frequent."""
    since_then = F.date_diff("day", F.coalesce("last_before", "first"))
    # Without known earlier days, every signature would be new.
    is_new = (F.col("known_days") > 0) & ~since_then.between(1, NEW_AFTER_DAYS)
    is_more = (F.col("events") >= RISING_MIN) & (F.col("events") >= RISING_FACTOR * F.col("usual"))
    marked = today.withColumns({"is_new": is_new, "is_rising": is_new | F.coalesce(is_more, F.lit(False))})
    by_weight = Window.partitionBy("day").orderBy(F.desc("is_rising"), F.desc("events"), *KEY)
    kept = marked.withColumn("place", F.row_number().over(by_weight)).where(F.col("place") <= KEPT)
    seen = {"first_seen_on": F.col("first"), "last_seen_on": F.col("day")}
    return kept.withColumns(seen | {"usual_events": F.col("usual")})
