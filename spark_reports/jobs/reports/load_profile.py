"""Load profile: the distribution of load over senders and recipients, and the share of retries.

A sender is the key that signed a request, or the server that it came from. Clients make up and change the keys that
they sign with, so one person is many senders, and no sender leads to a person. A notification that was refused or
suppressed at once has a sender and no recipient.
Late data: attempts are those made until the export, so the last retries of a day are missing until it is run again.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

TOP_SHARE = 0.01
GROUP = ["day", "role"]


def transform(actors: DataFrame) -> DataFrame:
    """Return the totals of each day and role, and the share of the heaviest actors."""
    totals = actors.groupBy(*GROUP).agg(
        F.sum("actors").alias("actors"),
        F.sum(_together()).alias("notifications"),
        F.sum("tried").alias("tried"),
        F.sum("attempts").alias("attempts"),
        F.ceil(F.sum("actors") * TOP_SHARE).alias("top_actors"),
    )
    return totals.join(_top_notifications(actors, totals), on=GROUP, how="inner").withColumns(
        {
            "top_share": F.col("top_notifications") / F.col("notifications"),
            "retry_amplification": F.when(F.col("tried") > 0, F.col("attempts") / F.col("tried")),
        }
    )


def _top_notifications(actors: DataFrame, totals: DataFrame) -> DataFrame:
    """Count the notifications of the top 1 % from a histogram, which needs no order among actors with equal numbers."""
    histogram = actors.groupBy(*GROUP, F.col("notifications").alias("each")).agg(F.sum("actors").alias("those"))
    heavier = Window.partitionBy(*GROUP).orderBy(F.desc("each")).rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.sum("those").over(heavier), F.lit(0))
    placed = histogram.withColumn("before", before).join(totals.select(*GROUP, "top_actors"), on=GROUP, how="inner")
    among_top = F.greatest(F.lit(0), F.least(F.col("those"), F.col("top_actors") - F.col("before")))
    return placed.groupBy(*GROUP).agg(F.sum(among_top * F.col("each")).alias("top_notifications"))


def _together() -> Column:
    """Return the notifications of all actors of a row. Each of them has the same number."""
    return F.col("actors") * F.col("notifications")


def heaviest(actors: DataFrame) -> DataFrame:
    """Return the actors with the most notifications."""
    share = F.col("notifications") / F.sum(_together()).over(Window.partitionBy(*GROUP))
    pseudonym = F.coalesce(F.lpad(F.lower(F.hex("actor")), 16, "0"), F.lit(""))
    shared = actors.withColumns({"share": share, "actor": pseudonym})
    return shared.where(F.col("rank").isNotNull())
