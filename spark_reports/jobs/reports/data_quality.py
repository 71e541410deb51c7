"""Whether the reports of a day can be believed.

Grain: one row per day, check and subject; ``is_ok`` false puts a banner on the day's reports.
Units: rows, device tokens, or days.
Checks: ``row_count`` what was read against what the manifest says; ``timestamps`` rows left out because their time is
outside of their day, or a duration cannot be true (`sources.is_duration`); ``unknown_values`` rows with a word that
this version does not know, which no figure guesses about (of both 0 are expected); ``reconciliation`` start + in - out
against the end of `token_churn`; ``continuity`` its start against the end of the day before, over all places;
``history`` on how many of the days that a report looks back to it rests, of those since the first day with reports;
``retention`` (only where it fails) whether the day was exported before its rows began to be removed.
Thresholds: a check fails when what was found differs from what is expected by more than a share that stands as a
constant beside its rule. ``row_count`` and ``retention`` have none: what Spark reads is exactly what was verified.
Late data: a check tells about the export that was read.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_reports.jobs import labels
from spark_reports.jobs.sources import is_duration, is_within_day, local_rows, union

DURATIONS = (
    "processed_us",
    "delivered_us",
    "answered_us",
    "latency_us",
    "queued_us",
    "published_us",
    "since_received_us",
)
EXPECTED = StructType().add("day", "date").add("subject", "string").add("expected", "long")
COMPARED = StructType([*EXPECTED.fields, StructField("found", LongType())])
Counts = Mapping[str, Mapping[str, int]]


def transform(expected_rows: DataFrame, found: DataFrame, churn: DataFrame, earlier_churn: DataFrame) -> DataFrame:
    """Check the facts against the manifests and the reports against each other.

    ``found`` are the counts of all tables; ``expected_rows`` (day, subject, expected) come from the manifests.
    """
    checks = [
        row_counts(expected_rows, found),
        none_of(expected_rows, found, "absurd", "timestamps"),
        none_of(expected_rows, found, "unknown", "unknown_values"),
        reconciliation(churn),
        continuity(churn, earlier_churn),
    ]
    return union(checks)


# One day of seven hardly moves a median, and each figure says on how many days it rests.
MISSING_DAYS = 0.2


def history(spark: SparkSession, days: Mapping[str, Mapping[str, Sequence[int]]]) -> DataFrame:
    """Return a check for each report and day that looks back. ``days``: expected and found, by report and day."""
    flat = [(day, report, *pair) for report, by_day in days.items() for day, pair in by_day.items()]
    return _check("history", local_rows(spark, flat, COMPARED), MISSING_DAYS)


def incomplete(spark: SparkSession, days: Sequence[str]) -> DataFrame:
    """Return a failed check for each day that was exported after its rows began to be removed."""
    flat = [(day, "facts", 1, 0) for day in days]
    return _check("retention", local_rows(spark, flat, COMPARED))


def expected_rows(spark: SparkSession, rows: Counts) -> DataFrame:
    """Return the row counts of the manifests (by table and day) as a frame."""
    flat = [(day, table, number) for table, days in rows.items() for day, number in days.items()]
    return local_rows(spark, flat, EXPECTED)


def count_all(facts: Mapping[str, DataFrame]) -> DataFrame:
    """Count the rows of all tables by day as they were read, the absurd ones and those with an unknown word.

    Each table is scanned once, and all of them are counted together: a count of its own would be a shuffle of its own.
    """
    rows = union([_judged(name, frame) for name, frame in facts.items()])
    return rows.groupBy("day", "subject").agg(
        F.count("*").alias("found"),
        F.count_if("is_absurd").alias("absurd"),
        F.count_if("is_unknown").alias("unknown"),
    )


def _judged(name: str, facts: DataFrame) -> DataFrame:
    return facts.select(
        "day",
        F.lit(name).alias("subject"),
        _is_absurd(facts.columns).alias("is_absurd"),
        _is_unknown(name).alias("is_unknown"),
    )


def _is_unknown(name: str) -> Column:
    is_unknown = F.lit(False)
    for column, known in labels.KNOWN.get(name, {}).items():
        is_unknown |= ~F.col(column).isin(*known)
    return is_unknown


def _is_absurd(columns: list[str]) -> Column:
    absurd = ~is_within_day() if "at" in columns else F.lit(False)
    for name in DURATIONS:
        if name in columns:
            absurd |= F.col(name).isNotNull() & ~is_duration(name)
    return absurd


def row_counts(expected: DataFrame, found: DataFrame) -> DataFrame:
    joined = expected.join(found, on=["day", "subject"], how="left").na.fill(0, ["found"])
    return _check("row_count", joined)


# One row of a thousand changes no figure that anybody reads.
ODD_ROWS = 0.001


def none_of(expected: DataFrame, found: DataFrame, column: str, check: str) -> DataFrame:
    """Check that hardly any rows of a table are of a kind."""
    joined = expected.drop("expected").join(found, on=["day", "subject"], how="left")
    number, rows = F.coalesce(column, F.lit(0)).alias("found"), F.coalesce("found", F.lit(0)).alias("rows")
    return _check(check, joined.select("day", "subject", F.lit(0).alias("expected"), number, rows), ODD_ROWS, of="rows")


# Tokens that neither come nor go: an event that was committed late is one of them.
UNEXPLAINED_TOKENS = 0.001


def reconciliation(churn: DataFrame) -> DataFrame:
    place = F.concat_ws(" ", "platform", "app_topic", "bridge").alias("subject")
    end = F.col("active_at_end")
    stocks = churn.select("day", place, (end + F.col("unexplained")).alias("expected"), end.alias("found"))
    return _check("reconciliation", stocks, UNEXPLAINED_TOKENS)


def continuity(churn: DataFrame, earlier: DataFrame) -> DataFrame:
    """Compare starts with the ends of the day before, summed over all places.

    A platform is `none` or an app topic `(other)` by rules that may change between two exports.
    """
    starts = churn.groupBy("day").agg(F.sum("active_at_start").alias("found"))
    ends = churn.unionByName(earlier).groupBy("day").agg(F.sum("active_at_end").alias("expected"))
    the_day_before = ends.withColumn("day", F.date_add("day", 1))
    joined = starts.join(the_day_before, on="day", how="inner")
    tokens = joined.select("day", F.lit("device tokens").alias("subject"), "expected", "found")
    return _check("continuity", tokens, UNEXPLAINED_TOKENS)


def _check(name: str, rows: DataFrame, share: float = 0.0, of: str = "expected") -> DataFrame:
    """Return the rows as checks, which fail beyond a share of the column ``of``."""
    difference = F.abs(F.col("expected") - F.col("found"))
    return rows.select(
        "day",
        F.lit(name).alias("check_name"),
        "subject",
        (difference <= share * F.col(of)).alias("is_ok"),
        "expected",
        "found",
    )
