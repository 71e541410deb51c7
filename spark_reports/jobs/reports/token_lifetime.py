"""Token lifetime: Kaplan-Meier survival of weekly cohorts of device tokens.

Ages are in days while computing, and in weeks in the result.
A token ends when it dies, expires or is replaced, and it ends once: a refresh afterwards does not put it at risk again.
A token that is unregistered, moves to another place or is still active is censored, because it has not ended. A token
is at risk on its first day, on its last day, and on all days between.
The interval is Greenwood's on the log-log scale, which stays between 0 and 1. That scale has no value for a survival of
1 or 0, where no token or every token has ended. Both ends are then the survival itself.
Late data: each day has the whole history of its tokens (`token_spells`), so that neither a missing day nor the order in
which days are made changes the result.
"""

from collections.abc import Mapping
from datetime import date

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_reports.jobs.reports.statistics import Z_95, of_day
from spark_reports.jobs.tables import PLACE

COHORT = ["day", *PLACE, "cohort"]


def transform(spells: DataFrame, history_from: Mapping[date, date]) -> DataFrame:
    """Return the survival of each cohort.

    ``history_from`` has for each day the first day with complete registration events.
    """
    weeks = by_week(with_survival(by_age(spells)))
    return weeks.withColumn("is_complete", F.col("cohort") >= of_day(history_from))


def by_age(spells: DataFrame) -> DataFrame:
    """Return for each cohort and age in days the tokens last observed at this age (``gone``), and those that ended.

    Each week of age in which a token was observed has a row, with the token-days of that week.
    """
    age = F.date_diff("last_day", "began_on")
    weeks = F.sequence(F.lit(0), F.floor(age / 7).cast("int"))
    seen = spells.select("day", *PLACE, "began_on", "end", "tokens", age.alias("age"), F.explode(weeks).alias("week"))
    last_age = F.least(F.col("age"), 7 * F.col("week") + 6)
    is_last = F.col("week") == F.floor(F.col("age") / 7)
    return seen.groupBy(
        "day", *PLACE, F.date_trunc("week", "began_on").cast("date").alias("cohort"), last_age.alias("age_days")
    ).agg(
        F.sum(F.col("tokens") * (last_age - 7 * F.col("week") + 1)).alias("token_days"),
        F.sum(F.when(is_last, F.col("tokens")).otherwise(0)).alias("gone"),
        F.sum(F.when(is_last & (F.col("end") == "ended"), F.col("tokens")).otherwise(0)).alias("ended"),
    )


def with_survival(ages: DataFrame) -> DataFrame:
    """Add the product of (1 - ended / at risk) over the ages so far, and the sum of Greenwood's formula."""
    older = Window.partitionBy(*COHORT).orderBy(F.desc("age_days"))
    ages = ages.withColumn("at_risk", F.sum("gone").over(older.rowsBetween(Window.unboundedPreceding, 0)))
    so_far = Window.partitionBy(*COHORT).orderBy("age_days").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    n, d = F.col("at_risk"), F.col("ended")
    all_gone = F.max((n == d).cast("int")).over(so_far) == 1
    log_survival = F.sum(F.when(n > d, F.log1p(-d / n)).otherwise(0.0)).over(so_far)
    greenwood = F.sum(F.when(n > d, d / (n * (n - d))).otherwise(0.0)).over(so_far)
    return ages.withColumns(
        {
            "survival": F.when(all_gone, 0.0).otherwise(F.exp(log_survival)),
            "greenwood": F.when(all_gone, 0.0).otherwise(greenwood),
        }
    )


def by_week(ages: DataFrame) -> DataFrame:
    """Return the survival at the end of each week of age."""
    week = (F.floor(F.col("age_days") / 7) + 1).cast("int")
    tokens = F.sum("gone").over(Window.partitionBy(*COHORT))
    weeks = (
        ages.withColumns({"age_weeks": week, "tokens": tokens})
        .groupBy(*COHORT, "age_weeks", "tokens")
        .agg(
            F.sum("token_days").alias("at_risk"),
            F.sum("ended").alias("ended"),
            F.max_by("survival", "age_days").alias("survival"),
            F.max_by("greenwood", "age_days").alias("greenwood"),
        )
    )
    return weeks.withColumns({"survival_low": log_log_bound(Z_95), "survival_high": log_log_bound(-Z_95)})


def log_log_bound(z: float) -> Column:
    """Return one end of the interval: S ^ exp(z · √greenwood / -ln S), or S itself if S is 0 or 1."""
    survival = F.col("survival")
    # The width is null for 0, which has no logarithm, and for 1, whose logarithm is 0.
    width = F.try_divide(F.lit(z) * F.sqrt("greenwood"), -F.ln(survival))
    return F.coalesce(F.pow(survival, F.exp(width)), survival)
