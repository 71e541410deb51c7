"""Spark schemas of the tables in `tables`, with the day that readers take from the path."""

from pyspark.sql.types import (
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


def schema_of(table: Table) -> StructType:
    """Return the Spark schema of a table: ``day``, then the table's columns in their order."""
    fields = [StructField(c.name, _TYPES[c.type], c.is_nullable) for c in table.columns]
    return StructType([DAY, *fields])
