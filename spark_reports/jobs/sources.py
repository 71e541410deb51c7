"""Readers of the files that a plan lists, with their declared schemas, and the check that times are plausible."""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from spark_reports.jobs.plan import Files, Plan
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table

# A longer duration means that a clock jumped, because retention removes rows earlier.
MAX_DURATION_US = 31 * 86_400 * 10**6
# The clocks of two machines differ by this at most, unless one of them is wrong.
CLOCK_NOISE_US = 5 * 10**6


def read_facts(spark: SparkSession, lake: str, plan: Plan, table: Table) -> DataFrame:
    """Read all rows of a table, also those with an implausible time (see `plausible`)."""
    return _read(spark, f"{lake}/facts/table={table.name}", lake, plan.facts.get(table.name, {}), schema_of(table))


def read_earlier(spark: SparkSession, lake: str, plan: Plan, report: Table) -> DataFrame:
    """Read a report's published rows of the days before the run. There are none before the first publication."""
    base = f"{lake}/reports/report={report.name}"
    return _read(spark, base, lake, plan.reports.get(report.name, {}), schema_of(report))


def plausible(facts: DataFrame) -> DataFrame:
    """Return the rows whose time is within their day. `data_quality` counts the others."""
    return facts.where(is_within_day())


def is_within_day() -> Column:
    """Return whether a row's time is within its day."""
    day = F.col("day").cast("timestamp")
    return (F.col("at") >= day) & (F.col("at") < day + F.expr("INTERVAL 1 DAY"))


def is_duration(name: str) -> Column:
    """Return whether a duration in microseconds is plausible. A little below 0 is the noise between two clocks."""
    return F.col(name).between(-CLOCK_NOISE_US, MAX_DURATION_US)


def _read(spark: SparkSession, base: str, lake: str, files: Files, schema: StructType) -> DataFrame:
    paths = [f"{lake}/{path}" for day in sorted(files) for path in files[day]]
    if not paths:
        return local_rows(spark, [], schema)
    return spark.read.schema(schema).option("basePath", base).parquet(*paths).select(schema.fieldNames())


def local_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Return a few rows of Python values as a frame. Dates are passed as text.

    The rows are a literal in the plan. With `createDataFrame`, executors would have to start Python to read them, and
    Spark would treat the frame as large.
    """
    as_json = json.dumps([dict(zip(schema.fieldNames(), row, strict=True)) for row in rows])
    one = spark.range(0, 1, 1, 1).where(F.lit(bool(rows)))  # so that the optimizer sees an empty frame
    frame = one.select(F.from_json(F.lit(as_json), ArrayType(schema), {"mode": "FAILFAST"}).alias("rows"))
    return frame.select(F.inline("rows"))


def union(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
