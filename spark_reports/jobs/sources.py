"""Reading: the files a plan names, with their declared schemas, and only rows whose time can be true."""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from spark_reports.jobs.plan import Files, Plan
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table

# A longer duration means that a clock jumped, as retention ends earlier.
MAX_DURATION_US = 31 * 86_400 * 10**6
# The clocks of two machines differ by some seconds at most, unless one of them is wrong.
CLOCK_NOISE_US = 5 * 10**6


def read_facts(spark: SparkSession, lake: str, plan: Plan, table: Table) -> DataFrame:
    """Read all rows of a table, also those whose time is absurd (see `plausible`)."""
    return _read(spark, f"{lake}/facts/table={table.name}", lake, plan.facts.get(table.name, {}), schema_of(table))


def read_earlier(spark: SparkSession, lake: str, plan: Plan, report: Table) -> DataFrame:
    """Read a report's published rows of the days before those of the run; empty where nothing was published yet."""
    base = f"{lake}/reports/report={report.name}"
    return _read(spark, base, lake, plan.reports.get(report.name, {}), schema_of(report))


def plausible(facts: DataFrame) -> DataFrame:
    """Return the rows whose time is within their day. `data_quality` counts those that are left out."""
    return facts.where(is_within_day())


def is_within_day() -> Column:
    """Return whether a row's time is within its day."""
    day = F.col("day").cast("timestamp")
    return (F.col("at") >= day) & (F.col("at") < day + F.expr("INTERVAL 1 DAY"))


def is_duration(name: str) -> Column:
    """Return whether a number of microseconds can be true. One that is a little below 0 is noise between two clocks."""
    return F.col(name).between(-CLOCK_NOISE_US, MAX_DURATION_US)


def _read(spark: SparkSession, base: str, lake: str, files: Files, schema: StructType) -> DataFrame:
    paths = [f"{lake}/{path}" for day in sorted(files) for path in files[day]]
    if not paths:
        return local_rows(spark, [], schema)
    return spark.read.schema(schema).option("basePath", base).parquet(*paths).select(schema.fieldNames())


def local_rows(spark: SparkSession, rows: Sequence[Sequence[object]], schema: StructType) -> DataFrame:
    """Return a few rows of Python's as a frame; dates are told as text.

    They go as a literal of the plan. What `createDataFrame` returns is read by Python on the executors, which have to
    start it, and counts as large.
    """
    as_json = json.dumps([dict(zip(schema.fieldNames(), row, strict=True)) for row in rows])
    one = spark.range(0, 1, 1, 1).where(F.lit(bool(rows)))  # the optimizer sees that there are none
    frame = one.select(F.from_json(F.lit(as_json), ArrayType(schema), {"mode": "FAILFAST"}).alias("rows"))
    return frame.select(F.inline("rows"))


def union(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
