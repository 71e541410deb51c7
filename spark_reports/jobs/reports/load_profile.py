"""Who sends and receives how much, and how much retrying adds.

Grain: `transform`: one row per day and role; `heaviest`: one row per day, role and rank.
Units: counts of notifications and attempts; shares from 0 to 1; retry amplification is attempts per notification that
had any.
A sender is the key that signed a request. Clients sign with keys they make up and change, so one person is many senders
and no sender leads to a person. Requests from before senders were noted have none and are not counted.
Late data: attempts are those made until the export, so the last retries of a day are missing until it is run again.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_reports.jobs.sources import union

RANKS = 20
TOP_SHARE = 0.01
GROUP = ["day", "role"]


def by_actor(notifications: DataFrame) -> DataFrame:
    """Return one row per day, role and pseudonym, from which both reports are made."""
    return union([_by(notifications, "sender"), _by(notifications, "recipient")])


def _by(notifications: DataFrame, role: str) -> DataFrame:
    grouped = notifications.where(F.col(role).isNotNull()).groupBy("day", F.col(role).alias("actor"))
    counted = grouped.agg(
        F.count("*").alias("notifications"),
        F.sum("attempts").alias("attempts"),
        F.count_if(F.col("attempts") > 0).alias("tried"),
        F.count_if(F.col("state") == "refused").alias("refused"),
    )
    return counted.withColumn("role", F.lit(role))


def transform(actors: DataFrame) -> DataFrame:
    """Return the totals of each day and role, and the share of the heaviest actors."""
    totals = actors.groupBy(*GROUP).agg(
        F.count("*").alias("actors"),
        F.sum("notifications").alias("notifications"),
        F.sum("tried").alias("tried"),
        F.sum("attempts").alias("attempts"),
        F.ceil(F.count("*") * TOP_SHARE).alias("top_actors"),
    )
    joined = totals.join(_top_notifications(actors, totals), on=GROUP, how="inner")
    return joined.select(
        *GROUP,
        "actors",
        "notifications",
        "top_actors",
        (F.col("top_notifications") / F.col("notifications")).alias("top_share"),
        "tried",
        "attempts",
        F.when(F.col("tried") > 0, F.col("attempts") / F.col("tried")).alias("retry_amplification"),
    )


def _top_notifications(actors: DataFrame, totals: DataFrame) -> DataFrame:
    """Count the notifications of the top 1 % from a histogram, as actors with equal numbers need no order among each
    other.
    """
    histogram = actors.groupBy(*GROUP, F.col("notifications").alias("each")).agg(F.count("*").alias("those"))
    heavier = Window.partitionBy(*GROUP).orderBy(F.desc("each")).rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum("those").over(heavier), F.lit(0))
    placed = histogram.withColumn("before", before).join(totals.select(*GROUP, "top_actors"), on=GROUP, how="inner")
    among_top = F.greatest(F.lit(0), F.least(F.col("those"), F.col("top_actors") - F.col("before")))
    return placed.groupBy(*GROUP).agg(F.sum(among_top * F.col("each")).alias("top_notifications"))


def heaviest(actors: DataFrame) -> DataFrame:
    """Return the actors with the most notifications."""
    totals = actors.groupBy(*GROUP).agg(F.sum("notifications").alias("all_notifications"))
    by_weight = Window.partitionBy(*GROUP).orderBy(F.desc("notifications"), "actor")
    ranked = actors.withColumn("rank", F.row_number().over(by_weight)).where(F.col("rank") <= RANKS)
    return ranked.join(totals, on=GROUP, how="inner").select(
        *GROUP,
        "rank",
        F.lpad(F.lower(F.hex("actor")), 16, "0").alias("actor"),
        "notifications",
        "attempts",
        "refused",
        (F.col("notifications") / F.col("all_notifications")).alias("share"),
    )
