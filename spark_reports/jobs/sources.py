"""Readers of the files that a plan lists, with their declared schemas, and the check that times are plausible."""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from spark_reports.jobs.plan import Files
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table

# A longer duration means that a clock jumped, because retention removes rows earlier.
MAX_DURATION_US = 31 * 86_400 * 10**6
# The clocks of two machines differ by this at most, unless one of them is wrong.
CLOCK_NOISE_US = 5 * 10**6


def read(spark: SparkSession, lake: str, files: Files, table: Table) -> DataFrame:
    """Read all rows of the files of a table, also those with an implausible time. Without files there are no rows."""
    schema = schema_of(table)
    paths = [f"{lake}/{path}" for day in sorted(files) for path in files[day]]
    if not paths:
        return local_rows(spark, [], schema)
    base, _, _ = paths[0].rpartition("/day=")
    return spark.read.schema(schema).option("basePath", base).parquet(*paths).select(schema.fieldNames())


def is_within_day() -> Column:
    """Return whether a row's time is within its day. `data_quality` counts the rows whose time is not."""
    day = F.col("day").cast("timestamp")
    return (F.col("at") >= day) & (F.col("at") < day + F.expr("INTERVAL 1 DAY"))


def is_duration(name: str) -> Column:
    """Return whether a duration in microseconds is plausible. A little below 0 is the noise between two clocks."""
    return F.col(name).between(-CLOCK_NOISE_US, MAX_DURATION_US)


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
