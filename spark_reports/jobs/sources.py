"""Reading: the files a plan names, with their declared schemas, and only rows whose time can be true."""

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_reports.jobs.plan import Files, Plan
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table

# A longer duration means that a clock jumped, as retention ends earlier.
MAX_DURATION_US = 31 * 86_400 * 10**6


def read_plan(spark: SparkSession, lake: str, path: str) -> Plan:
    [row] = spark.read.text(f"{lake}/{path}", wholetext=True).collect()
    return Plan.from_json(row["value"])


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
    """Return whether a number of microseconds can be true. A negative one comes from the clocks of two machines."""
    return F.col(name).between(0, MAX_DURATION_US)


def _read(spark: SparkSession, base: str, lake: str, files: Files, schema: StructType) -> DataFrame:
    paths = [f"{lake}/{path}" for day in sorted(files) for path in files[day]]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", base).parquet(*paths).select(schema.fieldNames())


def union(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
