"""Latency: percentiles of the durations of each stage.

Percentiles are of durations rounded down to 1 ms below 10 s and to 1 s above. The longest is exact.
Stages: ``decide`` envelope received → processed; ``answer`` request received → its answer fixed, once per request, on
the platform of its first notification; ``reply`` message received → the answer published to the node, of those that
went out once; ``queue`` message received → the POST of its first push; ``gateway`` one attempt; ``deliver`` accepted →
delivered.
Late data: a duration that had not ended at the export is missing until the next export and run of the day. Durations
that are not plausible (`sources.is_duration`) are left out, and `data_quality` counts them. A duration that is negative
by the noise between two clocks counts as 0.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_reports.jobs.sources import is_duration, union

KEY = ["day", "stage", "platform", "bridge"]
EXACT_BELOW_US = 10_000_000
QUANTILES = (0.5, 0.9, 0.95, 0.99)


def count_durations(envelopes: DataFrame, times: DataFrame, attempts: DataFrame, replies: DataFrame) -> DataFrame:
    """Return a histogram of the durations of each stage."""
    measured = union(
        [
            durations(envelopes, "decide", "processed_us"),
            durations(times, "answer", "answered_us", has_deadline=True),
            durations(times, "deliver", "delivered_us"),
            durations(attempts, "queue", "queued_us"),
            durations(attempts, "gateway", "latency_us"),
            durations(replies, "reply", "since_received_us", has_deadline=True),
        ]
    )
    return count(measured)


def transform(histogram: DataFrame) -> DataFrame:
    """Return the percentiles of each stage by platform and bridge, and for all of them together."""
    return percentiles(also_all(also_all(histogram, "platform"), "bridge"))


def also_all(histogram: DataFrame, dimension: str) -> DataFrame:
    """Add a copy of each row with the value `all` of a dimension."""
    return histogram.withColumn(dimension, F.explode(F.array(dimension, F.lit("all"))))


def durations(facts: DataFrame, stage: str, column: str, *, has_deadline: bool = False) -> DataFrame:
    """Return the durations of one stage. ``in_time`` is 1 or 0 by the deadline, or null without one."""
    platform = F.col("platform") if "platform" in facts.columns else F.lit("none")
    bridge = F.col("bridge") if "bridge" in facts.columns else F.lit("waku")
    is_in_time = (F.col(column) <= F.col("deadline_us")).cast("bigint") if has_deadline else F.lit(None).cast("bigint")
    return facts.where(is_duration(column)).select(
        "day",
        F.lit(stage).alias("stage"),
        platform.alias("platform"),
        bridge.alias("bridge"),
        F.greatest(F.lit(0), F.col(column)).alias("us"),
        is_in_time.alias("in_time"),
    )


def count(measured: DataFrame) -> DataFrame:
    """Return a histogram, so that exact percentiles need no sorting of every event."""
    return measured.groupBy(*KEY, _rounded(F.col("us")).alias("ms")).agg(
        F.count("*").alias("events"), F.sum("in_time").alias("in_time"), F.max("us").alias("max_us")
    )


def _rounded(us: Column) -> Column:
    """Return whole milliseconds, rounded down by integer division."""
    step = F.when(us < EXACT_BELOW_US, F.lit(1)).otherwise(F.lit(1000))
    return F.call_function("div", us, step * 1000) * step


def percentiles(histogram: DataFrame) -> DataFrame:
    """Return exact percentiles of a histogram."""
    quantiles = F.percentile("ms", F.array(*map(F.lit, QUANTILES)), F.col("events"))
    summed = histogram.groupBy(*KEY).agg(
        F.sum("events").alias("events"),
        F.sum("in_time").alias("in_time"),
        F.max("max_us").alias("max_us"),
        quantiles.alias("quantiles"),
    )
    return summed.select(
        *KEY,
        "events",
        *[F.col("quantiles")[i].alias(f"p{round(q * 100)}_ms") for i, q in enumerate(QUANTILES)],
        "max_us",
        (F.col("in_time") / F.col("events")).alias("within_deadline"),
    )
