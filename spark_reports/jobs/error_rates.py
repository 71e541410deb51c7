"""Error rates by hour and day.

Grain: one row per day, hour (null: the whole day), stage, platform, app topic, outcome class and code.
Units: ``events`` and ``total`` are counts, rates are shares from 0 to 1.
Stages: ``inbox`` envelopes that could not be told apart, ``registration``, ``query`` and ``request`` as received (of
requests: one event per notification asked for, and one per request that was dropped whole), ``dispatch`` tries at the
gateway, ``reply`` messages on their way back.
Late data: an event counts on the day and hour of its first timestamp with what was known at the export. What ended
later (``open``, ``waiting``) changes with the next export and run of that day. Comparison is with the reports published
for the seven days before, so a backfill runs from its oldest day.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.sources import union
from spark_reports.jobs.statistics import scale, wilson_high, wilson_low, with_usual

CELL = ["hour", "stage", "platform", "app_topic"]  # what a total is of
OUTCOME = ["outcome", "code", "is_failure"]
WHOLE_DAY = -1  # as an hour, while it is a key of joins
FAILURES = (
    *("refused", "dropped", "failed", "dead", "config", "payload", "transient", "ambiguous"),
    *("abandoned", "unconfirmed"),
)


def count_outcomes(
    envelopes: DataFrame, notifications: DataFrame, attempts: DataFrame, replies: DataFrame
) -> DataFrame:
    """The one pass over the facts: how many ended how, by hour. Small, and worth keeping."""
    events = [of_envelopes(envelopes), of_notifications(notifications), of_attempts(attempts), of_replies(replies)]
    return count(union(events))


def transform(outcomes: DataFrame, earlier: DataFrame) -> DataFrame:
    """``outcomes`` as counted; ``earlier`` holds this report's rows of the days before."""
    return with_comparison(with_rates(union([outcomes, whole_days(outcomes)])), earlier)


def of_envelopes(envelopes: DataFrame) -> DataFrame:
    """Requests that were read are counted by their notifications."""
    is_refusal = (F.col("reason") != "") & (F.col("reason") != "nothing_found")
    outcome = (
        F.when(F.col("state").isin("dropped", "failed"), F.col("state"))
        .when(F.col("state") != "processed", "open")
        .when(is_refusal, "refused")
        .when(F.col("reason") == "nothing_found", "nothing_found")
        .otherwise("accepted")
    )
    known = F.col("type").isin("registration", "query", "request")
    is_counted_elsewhere = (F.col("type") == "request") & (F.col("state") == "processed")
    code = F.when(F.col("reason") == "nothing_found", "").otherwise(F.col("reason"))
    return _events(
        envelopes.where(~is_counted_elsewhere).withColumns({"platform": F.lit("none"), "app_topic": F.lit("")}),
        F.when(known, F.col("type")).otherwise("inbox"),
        outcome,
        code,
    )


def of_notifications(notifications: DataFrame) -> DataFrame:
    """Whether a push was accepted. What became of it afterwards is told by the stage ``dispatch``."""
    decided = F.col("state").isin("refused", "suppressed", "duplicate")
    code = F.when(F.col("state") == "refused", F.col("report")).otherwise("")
    return _events(notifications, F.lit("request"), F.when(decided, F.col("state")).otherwise("accepted"), code)


def of_attempts(attempts: DataFrame) -> DataFrame:
    return _events(attempts, F.lit("dispatch"), F.col("outcome"), F.col("code"))


def of_replies(replies: DataFrame) -> DataFrame:
    """Without a repetition no store said that it lacked the reply, mostly because none answered: that is no failure."""
    is_unchecked = (F.col("state") == "unconfirmed") & (F.col("repeats") == 0)
    outcome = F.when(F.col("state") == "pending", "waiting").when(is_unchecked, "unchecked").otherwise(F.col("state"))
    placed = replies.withColumns({"platform": F.lit("none"), "app_topic": F.lit("")})
    return _events(placed, F.lit("reply"), outcome, F.col("type"))


def _events(facts: DataFrame, stage: Column, outcome: Column, code: Column) -> DataFrame:
    return facts.select(
        "day",
        F.hour("at").alias("hour"),
        stage.alias("stage"),
        "platform",
        "app_topic",
        outcome.alias("outcome"),
        code.alias("code"),
    )


def count(events: DataFrame) -> DataFrame:
    is_failure = F.col("outcome").isin(*FAILURES)
    counted = events.groupBy("day", *CELL, "outcome", "code").agg(F.count("*").alias("events"))
    return counted.withColumn("is_failure", is_failure).select("day", *CELL, *OUTCOME, "events")


def whole_days(hourly: DataFrame) -> DataFrame:
    keys = ["day", *CELL[1:], *OUTCOME]
    summed = hourly.groupBy(*keys).agg(F.sum("events").alias("events"))
    return summed.withColumn("hour", F.lit(WHOLE_DAY)).select("day", *CELL, *OUTCOME, "events")


def with_rates(counts: DataFrame) -> DataFrame:
    cells = counts.groupBy("day", *CELL).agg(F.sum("events").alias("total"))
    events, total = F.col("events"), F.col("total")
    return counts.join(cells, on=["day", *CELL], how="inner").select(
        "day",
        *CELL,
        *OUTCOME,
        "events",
        "total",
        (events / total).alias("rate"),
        wilson_low(events, total).alias("rate_low"),
        wilson_high(events, total).alias("rate_high"),
    )


def with_comparison(rates: DataFrame, earlier: DataFrame) -> DataFrame:
    """A code that did not occur on a day with traffic had the rate 0 there."""
    before = earlier.withColumn("hour", F.coalesce("hour", F.lit(WHOLE_DAY)))
    columns = ["day", *CELL, *OUTCOME, "rate"]
    known = union([before.select(columns), rates.select(columns)])
    compared = with_usual(rates, known, [*CELL, *OUTCOME], "rate", cell=CELL)
    change = F.col("rate") - F.col("usual")
    return compared.select(
        "day",
        F.when(F.col("hour") != WHOLE_DAY, F.col("hour")).alias("hour"),
        *rates.columns[2:],
        F.col("usual").alias("usual_rate"),
        change.alias("change"),
        (change / scale(F.col("usual"), F.col("deviation"), F.col("total"))).alias("z_score"),
    )
