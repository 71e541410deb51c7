"""Readers of the facts, with their declared schemas, and the check that times are plausible."""

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_reports.jobs.plan import path_of
from spark_reports.jobs.tables import Table, Type

_TYPES: dict[Type, DataType] = {
    Type.TIMESTAMP: TimestampType(),
    Type.DATE: DateType(),
    Type.STRING: StringType(),
    Type.INT: IntegerType(),
    Type.LONG: LongType(),
    Type.DOUBLE: DoubleType(),
    Type.BOOLEAN: BooleanType(),
}
DAY = StructField("day", DateType(), nullable=False)
# A longer duration means that a clock jumped, because retention removes rows earlier.
MAX_DURATION_US = 31 * 86_400 * 10**6
# The clocks of two machines differ by this at most, unless one of them is wrong.
CLOCK_NOISE_US = 5 * 10**6


def schema_of(table: Table) -> StructType:
    """Return the Spark schema of a table: ``day``, then the table's columns in their order."""
    fields = [StructField(c.name, _TYPES[c.type], c.is_nullable) for c in table.columns]
    return StructType([DAY, *fields])


def read(spark: SparkSession, lake: str, table: Table, days: Sequence[str]) -> DataFrame:
    """Read all facts of a table on these days, also those with an implausible time."""
    paths = [f"{lake}/{path_of(table.name, day)}" for day in days]
    reader = spark.read.schema(schema_of(table)).option("basePath", f"{lake}/facts/{table.name}")
    return reader.parquet(*paths).select(schema_of(table).fieldNames())


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
