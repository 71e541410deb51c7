"""Anomalies: error rates and churn rates outside of their usual range.

The range is the usual rate ± 3.5 times the scale of `statistics.scale`. Late data: as for `error_rates` and
`token_churn`, from which this report is computed.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.reports.statistics import scale, with_usual
from spark_reports.jobs.reports.token_churn import LOST, sum_of
from spark_reports.jobs.sources import union
from spark_reports.jobs.tables import MIN_TOTAL, PLACE

LIMIT = 3.5
MIN_DIFFERENCE = 10
FIGURE = ["figure", "stage", *PLACE]


def transform(
    error_rates: DataFrame, earlier_error_rates: DataFrame, churn: DataFrame, earlier_churn: DataFrame
) -> DataFrame:
    """Return the figures of ``error_rates`` and ``churn`` that are outside of their usual range.

    ``earlier_error_rates`` and ``earlier_churn`` hold the rows of these reports for the days before.
    """
    today = union([failing(error_rates), leaving(churn)])
    earlier = union([failing(earlier_error_rates), leaving(earlier_churn)])
    compared = with_usual(today, union([earlier, today]), FIGURE, "value").where(F.col("usual").isNotNull())
    value, usual, total, width = (F.col(name) for name in ("value", "usual", "total", "scale"))
    scored = compared.withColumn("scale", scale(usual, F.col("deviation"), total))
    is_unusual = F.abs(value - usual) > LIMIT * width
    is_material = F.abs(F.col("events") - usual * total) >= MIN_DIFFERENCE
    return scored.where(is_unusual & is_material & (total >= MIN_TOTAL)).withColumns(
        {
            "band_low": F.greatest(F.lit(0.0), usual - LIMIT * width),
            "band_high": F.least(F.lit(1.0), usual + LIMIT * width),
            "z_score": (value - usual) / width,
        }
    )


def failing(error_rates: DataFrame) -> DataFrame:
    """Return the failures of each stage and day, summed over their codes, as a figure."""
    whole_day = error_rates.where(F.col("hour").isNull())
    events = F.sum(F.when(F.col("is_failure"), F.col("events")).otherwise(0))
    summed = whole_day.groupBy("day", "stage", *PLACE).agg(events.alias("events"), F.first("total").alias("total"))
    return summed.select(
        "day",
        F.lit("error_rate").alias("figure"),
        "stage",
        *PLACE,
        "events",
        "total",
        (F.col("events") / F.col("total")).alias("value"),
    )


def leaving(churn: DataFrame) -> DataFrame:
    """Return the lost tokens of each day as a figure."""
    return churn.where(F.col("churn_rate").isNotNull()).select(
        "day",
        F.lit("churn_rate").alias("figure"),
        F.lit("churn").alias("stage"),
        *PLACE,
        sum_of(LOST).alias("events"),
        F.col("active_at_start").alias("total"),
        F.col("churn_rate").alias("value"),
    )
