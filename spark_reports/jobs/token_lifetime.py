"""How long device tokens live: Kaplan-Meier survival of weekly cohorts.

`spells` reduces a day to what survival needs, so that a night reads months of small files and not months of events.

Grain: `spells`: one row per day, platform, app topic, front door and day of first registration. `transform`: one row
per day of the report, platform, app topic, front door, cohort (Monday of the week of first registration) and age in
weeks.
Units: ages in days inside, in weeks in the result; survival from 0 to 1.
A token ends when it dies, expires or is replaced. Unregistering says nothing about the token: it is censored, as is
what is still active. Tokens known only from some age on (the lake began later) enter the risk set at that age.
Late data: as for `token_churn`.
"""

from collections.abc import Sequence
from datetime import date

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_reports.jobs.statistics import Z_95
from spark_reports.jobs.tables import LIFETIME_WEEKS
from spark_reports.jobs.token_churn import is_elsewhere

PLACE = ["platform", "app_topic", "front_door"]
COHORT = ["day", *PLACE, "cohort"]
STARTS = ("registered", "token_changed")


def spells(events: DataFrame, active: DataFrame) -> DataFrame:
    """Reduce a day to its spells.

    At risk on a day are the tokens that were active at its start, and those that it brings.
    """
    known = active.where(F.col("token_since") < F.col("day")).select(
        "day", *PLACE, "token_since", F.col("at_start").alias("at_risk"), _none("ended"), _none("censored")
    )
    is_start = F.col("is_active") & F.col("kind").isin(*STARTS) & (F.col("token_since") == F.col("day"))
    started = events.where(is_start).select(
        "day", *PLACE, "token_since", _one(F.lit(True), "at_risk"), _none("ended"), _none("censored")
    )
    summed = known.unionByName(started).unionByName(_left(events)).groupBy("day", *PLACE, "token_since")
    totals = summed.agg(*[F.sum(name).alias(name) for name in ("at_risk", "ended", "censored")])
    # A token that was revived and died again within a day ends once.
    return totals.where(F.col("at_risk") > 0).select(
        "day",
        *PLACE,
        "token_since",
        "at_risk",
        F.least("ended", "at_risk").alias("ended"),
        F.least("censored", F.col("at_risk") - F.least("ended", "at_risk")).alias("censored"),
    )


def _left(events: DataFrame) -> DataFrame:
    died = ~F.col("is_active") & F.col("kind").isin("token_died", "expired")
    ended = died | (F.col("is_active") & (F.col("kind") == "token_changed"))
    censored = ~ended & (~F.col("is_active") | is_elsewhere())
    return events.where(F.col("was_active") & (ended | censored)).select(
        "day",
        F.col("previous_platform").alias("platform"),
        F.col("previous_app_topic").alias("app_topic"),
        "front_door",
        F.col("previous_token_since").alias("token_since"),
        _none("at_risk"),
        _one(ended, "ended"),
        _one(censored, "censored"),
    )


def _none(name: str) -> Column:
    return F.lit(0).cast("bigint").alias(name)


def _one(condition: Column, name: str) -> Column:
    return condition.cast("bigint").alias(name)


def transform(all_spells: DataFrame, days: Sequence[date]) -> DataFrame:
    """Return the survival of each cohort.

    ``all_spells`` are those of the last 26 weeks, the days of the run included.
    """
    ages = by_age(all_spells, days)
    return by_week(with_survival(ages))


def by_age(all_spells: DataFrame, days: Sequence[date]) -> DataFrame:
    """Return what was seen by the end of each day: at risk and ended per cohort and age in days."""
    reports = F.explode(F.array(*[F.lit(day) for day in days]))
    oldest = F.date_trunc("week", F.date_sub(F.col("report_day"), 7 * (LIFETIME_WEEKS - 1))).cast("date")
    seen = all_spells.withColumn("report_day", reports).where(
        (F.col("day") <= F.col("report_day")) & (F.col("token_since") >= oldest)
    )
    return seen.groupBy(
        F.col("report_day").alias("day"),
        *PLACE,
        F.date_trunc("week", "token_since").cast("date").alias("cohort"),
        F.date_diff("day", "token_since").alias("age_days"),
    ).agg(F.sum("at_risk").alias("at_risk"), F.sum("ended").alias("ended"))


def with_survival(ages: DataFrame) -> DataFrame:
    """Add the product of (1 - ended / at risk) over the ages so far, and the sum of Greenwood's formula."""
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
    """Return the survival at the end of each week of age. Cohorts seen only from a later age on are left out."""
    week = (F.floor(F.col("age_days") / 7) + 1).cast("int")
    newborn = F.sum(F.when(F.col("age_days") == 0, F.col("at_risk")).otherwise(0))
    tokens = newborn.over(Window.partitionBy(*COHORT))
    weeks = (
        ages.withColumns({"age_weeks": week, "tokens": tokens})
        .where(F.col("tokens") > 0)
        .groupBy(*COHORT, "age_weeks", "tokens")
        .agg(
            F.sum("at_risk").alias("at_risk"),
            F.sum("ended").alias("ended"),
            F.max_by("survival", "age_days").alias("survival"),
            F.max_by("greenwood", "age_days").alias("greenwood"),
        )
    )
    margin = Z_95 * F.col("survival") * F.sqrt("greenwood")
    return weeks.select(
        *COHORT,
        "age_weeks",
        "tokens",
        "at_risk",
        "ended",
        "survival",
        F.greatest(F.lit(0.0), F.col("survival") - margin).alias("survival_low"),
        F.least(F.lit(1.0), F.col("survival") + margin).alias("survival_high"),
    )
