"""Error rates by hour and day.

Stages: ``inbox`` envelopes that are none of the three that follow (``read``: of another type, such as a contact code),
``registration``, ``query`` and ``request`` as received (of requests: one event per notification asked for, and one per
request that was dropped whole), ``dispatch`` attempts at the gateway, ``reply`` messages on their way back.
Late data: an event counts on the day and hour of its first timestamp, with its outcome at the export. An outcome that
was ``open`` or ``waiting`` then changes with the next export and run of that day. Rates are compared with the published
reports of the seven days before, so a backfill begins with its oldest day.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_reports.jobs import labels, tables
from spark_reports.jobs.reports.statistics import scale, wilson_high, wilson_low, with_usual
from spark_reports.jobs.sources import union
from spark_reports.jobs.tables import PLACE, Table

CELL = ["hour", "stage", *PLACE]  # the keys of a total
OUTCOME = ["outcome", "code", "is_failure"]
# The outcome of a state that this version does not know. `data_quality` has a finding about it.
UNKNOWN = "unknown"
WHOLE_DAY = -1  # stands for the hour null, which is no key of joins
FAILURES = (
    *("refused", "dropped", "failed", "dead", "config", "payload", "transient", "ambiguous"),
    *("abandoned", "unconfirmed"),
)


def count_outcomes(
    envelopes: DataFrame, notifications: DataFrame, attempts: DataFrame, replies: DataFrame
) -> DataFrame:
    """Count the events by hour and outcome.

    This is the only pass over the facts. Its result is small, so the caller keeps it in memory.
    """
    events = [of_envelopes(envelopes), of_notifications(notifications), of_attempts(attempts), of_replies(replies)]
    return count(union(events))


def transform(outcomes: DataFrame, earlier: DataFrame) -> DataFrame:
    """Return the rates of ``outcomes``. ``earlier`` holds this report's rows of the days before."""
    return with_comparison(with_rates(union([outcomes, whole_days(outcomes)])), earlier)


def of_envelopes(envelopes: DataFrame) -> DataFrame:
    """Return the events of envelopes. Requests that were processed are counted by their notifications instead.

    A message of another type, such as a contact code, has the outcome ``read``, because it requests nothing.
    """
    known = F.col("type").isin("registration", "query", "request")
    is_refusal = (F.col("reason") != "") & (F.col("reason") != "nothing_found")
    outcome = (
        F.when(F.col("state").isin("dropped", "failed"), F.col("state"))
        .when(F.col("state").isin(*labels.WAITING_ENVELOPES), "open")
        .when(F.col("state") != "processed", UNKNOWN)
        .when(is_refusal, "refused")
        .when(F.col("reason") == "nothing_found", "nothing_found")
        .when(known, "accepted")
        .otherwise("read")
    )
    is_counted_elsewhere = (F.col("type") == "request") & (F.col("state") == "processed")
    code = F.when(F.col("reason") == "nothing_found", "").otherwise(F.col("reason"))
    return _events(
        _of_waku(envelopes.where(~is_counted_elsewhere)),
        F.when(known, F.col("type")).otherwise("inbox"),
        outcome,
        code,
    )


def of_notifications(notifications: DataFrame) -> DataFrame:
    """Return the events of notifications: accepted or not. The stage ``dispatch`` has the outcomes of attempts."""
    outcome = (
        F.when(F.col("state").isin(*labels.DECIDED_AT_ONCE), F.col("state"))
        .when(F.col("state").isin(*labels.ACCEPTED), "accepted")
        .otherwise(UNKNOWN)
    )
    code = F.when(F.col("state") == "refused", F.col("report")).otherwise("")
    return _events(notifications, F.lit("request"), outcome, code)


def of_attempts(attempts: DataFrame) -> DataFrame:
    return _events(attempts, F.lit("dispatch"), _if_known(tables.ATTEMPTS, "outcome"), F.col("code"))


def of_replies(replies: DataFrame) -> DataFrame:
    """Return the events of replies.

    An unconfirmed reply that was never repeated is no failure: no store reported that it lacks the reply, mostly
    because no store answered.
    """
    is_unchecked = (F.col("state") == "unconfirmed") & (F.col("repeats") == 0)
    outcome = F.when(F.col("state") == "pending", "waiting").when(is_unchecked, "unchecked")
    outcome = outcome.otherwise(_if_known(tables.REPLIES, "state"))
    return _events(_of_waku(replies), F.lit("reply"), outcome, F.col("type"))


def _if_known(table: Table, column: str) -> Column:
    is_known = F.col(column).isin(*labels.KNOWN[table.name][column])
    return F.when(is_known, F.col(column)).otherwise(UNKNOWN)


def _of_waku(messages: DataFrame) -> DataFrame:
    """Add the place of messages of Waku, which have no platform and no app."""
    return messages.withColumns({"platform": F.lit("none"), "app_topic": F.lit(""), "bridge": F.lit("waku")})


def _events(facts: DataFrame, stage: Column, outcome: Column, code: Column) -> DataFrame:
    return facts.select(
        "day",
        F.hour("at").alias("hour"),
        stage.alias("stage"),
        *PLACE,
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
    """Add the total of each cell, the rate of each outcome in it, and its Wilson interval."""
    # A window, because a join with the sums would compute the counts twice.
    cell = Window.partitionBy("day", *CELL)
    events, total = F.col("events"), F.col("total")
    rates = {"rate": events / total, "rate_low": wilson_low(events, total), "rate_high": wilson_high(events, total)}
    return counts.withColumn("total", F.sum("events").over(cell)).withColumns(rates)


def with_comparison(rates: DataFrame, earlier: DataFrame) -> DataFrame:
    """Compare each rate with the days before. A code that did not occur on a day with traffic has the rate 0 there."""
    before = earlier.withColumn("hour", F.coalesce("hour", F.lit(WHOLE_DAY)))
    columns = ["day", *CELL, *OUTCOME, "rate"]
    known = union([before.select(columns), rates.select(columns)])
    compared = with_usual(rates, known, [*CELL, *OUTCOME], "rate", cell=CELL)
    change = F.col("rate") - F.col("usual")
    return compared.withColumns(
        {
            "hour": F.when(F.col("hour") != WHOLE_DAY, F.col("hour")),
            "usual_rate": F.col("usual"),
            "change": change,
            "z_score": change / scale(F.col("usual"), F.col("deviation"), F.col("total")),
        }
    )
