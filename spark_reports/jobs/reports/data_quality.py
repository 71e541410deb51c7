"""Data quality: checks of the facts and reports of a day.

``row_count`` compares the rows that were read with those in the manifest.
``timestamps`` counts the rows that are left out, because their time is outside of their day or a duration is not
plausible (`sources.is_duration`). 0 are expected.
``unknown_values`` counts the rows with a label that this version does not know, which count as unknown. 0 are expected.
``reconciliation`` compares start + in - out of `token_churn` with its end.
``continuity`` compares the start of `token_churn` with the end of the day before, summed over all places.
``history`` compares the days that a report looks back to with those that are there, since the first day with reports.
``retention`` has a row only where it fails: the day was exported after retention had begun to remove its rows.
Thresholds: a check fails when the found number differs from the expected one by more than a share, which is a constant
beside its rule. ``row_count`` and ``retention`` have no tolerance, because Spark reads exactly the verified files.
Late data: a check is about the export that was read.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from spark_reports.jobs import labels
from spark_reports.jobs.sources import is_duration, is_within_day, local_rows, union
from spark_reports.jobs.tables import PLACE

EXPECTED = StructType().add("day", "date").add("subject", "string").add("expected", "long")
COMPARED = StructType([*EXPECTED.fields, StructField("found", LongType())])
Counts = Mapping[str, Mapping[str, int]]


def transform(expected_rows: DataFrame, found: DataFrame, churn: DataFrame, earlier_churn: DataFrame) -> DataFrame:
    """Check the facts against the manifests and the reports against each other.

    ``found`` has the counts of all tables, and ``expected_rows`` (day, subject, expected) those of the manifests.
    """
    checks = [
        row_counts(expected_rows, found),
        none_of(expected_rows, found, "absurd", "timestamps"),
        none_of(expected_rows, found, "unknown", "unknown_values"),
        reconciliation(churn),
        continuity(churn, earlier_churn),
    ]
    return union(checks)


# Share of missing days that is tolerated: one of seven hardly moves a median, and each figure names its days.
MISSING_DAYS = 0.2


def history(spark: SparkSession, days: Mapping[str, Mapping[str, Sequence[int]]]) -> DataFrame:
    """Return a check for each report and day that looks back. ``days`` has expected and found by report and day."""
    flat = [(day, report, *pair) for report, by_day in days.items() for day, pair in by_day.items()]
    return _check("history", local_rows(spark, flat, COMPARED), MISSING_DAYS)


def incomplete(spark: SparkSession, days: Sequence[str]) -> DataFrame:
    """Return a failed check for each day that was exported after retention had begun to remove its rows."""
    flat = [(day, "facts", 1, 0) for day in days]
    return _check("retention", local_rows(spark, flat, COMPARED))


def expected_rows(spark: SparkSession, rows: Counts) -> DataFrame:
    """Return the row counts of the manifests (by table and day) as a frame."""
    flat = [(day, table, number) for table, days in rows.items() for day, number in days.items()]
    return local_rows(spark, flat, EXPECTED)


def count_all(facts: Mapping[str, DataFrame]) -> DataFrame:
    """Count by table and day all rows, those with an implausible time, and those with an unknown label.

    Each table is scanned once. All tables are counted together, because each count would need a shuffle of its own.
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
    for name in columns:
        if name.endswith("_us") and name != "deadline_us":
            absurd |= F.col(name).isNotNull() & ~is_duration(name)
    return absurd


def row_counts(expected: DataFrame, found: DataFrame) -> DataFrame:
    joined = expected.join(found, on=["day", "subject"], how="left").na.fill(0, ["found"])
    return _check("row_count", joined)


# Share of odd rows that is tolerated: one row of a thousand changes no figure visibly.
ODD_ROWS = 0.001


def none_of(expected: DataFrame, found: DataFrame, column: str, check: str) -> DataFrame:
    """Check that no more than ODD_ROWS of a table's rows are in ``column``."""
    joined = expected.drop("expected").join(found, on=["day", "subject"], how="left")
    number, rows = F.coalesce(column, F.lit(0)).alias("found"), F.coalesce("found", F.lit(0)).alias("rows")
    return _check(check, joined.select("day", "subject", F.lit(0).alias("expected"), number, rows), ODD_ROWS, of="rows")


# Share of tokens without an event that is tolerated, for events that are committed late.
UNEXPLAINED_TOKENS = 0.001


def reconciliation(churn: DataFrame) -> DataFrame:
    place = F.concat_ws(" ", *PLACE).alias("subject")
    end = F.col("active_at_end")
    stocks = churn.select("day", place, (end + F.col("unexplained")).alias("expected"), end.alias("found"))
    return _check("reconciliation", stocks, UNEXPLAINED_TOKENS)


def continuity(churn: DataFrame, earlier: DataFrame) -> DataFrame:
    """Compare the start of each day with the end of the day before, summed over all places.

    Single places are not compared, because the rules for the platform `none` and the app topic `(other)` may change
    between two exports.
    """
    starts = churn.groupBy("day").agg(F.sum("active_at_start").alias("found"))
    ends = churn.unionByName(earlier).groupBy("day").agg(F.sum("active_at_end").alias("expected"))
    the_day_before = ends.withColumn("day", F.date_add("day", 1))
    joined = starts.join(the_day_before, on="day", how="inner")
    tokens = joined.select("day", F.lit("device tokens").alias("subject"), "expected", "found")
    return _check("continuity", tokens, UNEXPLAINED_TOKENS)


def _check(name: str, rows: DataFrame, share: float = 0.0, of: str = "expected") -> DataFrame:
    """Return the rows as checks. One fails if the difference exceeds ``share`` of the column ``of``."""
    difference = F.abs(F.col("expected") - F.col("found"))
    return rows.select(
        "day",
        F.lit(name).alias("check_name"),
        "subject",
        (difference <= share * F.col(of)).alias("is_ok"),
        "expected",
        "found",
    )
