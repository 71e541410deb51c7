"""Spark's schemas of `tables`, with the day that readers take from the path."""

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

from spark_reports.jobs import tables
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
    """``day`` first, then the table's columns in their order."""
    fields = [StructField(c.name, _TYPES[c.type], c.is_nullable) for c in table.columns]
    return StructType([DAY, *fields])


ENVELOPES = schema_of(tables.ENVELOPES)
NOTIFICATIONS = schema_of(tables.NOTIFICATIONS)
ATTEMPTS = schema_of(tables.ATTEMPTS)
REPLIES = schema_of(tables.REPLIES)
REGISTRATION_EVENTS = schema_of(tables.REGISTRATION_EVENTS)
ACTIVE_TOKENS = schema_of(tables.ACTIVE_TOKENS)
UNKNOWN_ERRORS = schema_of(tables.UNKNOWN_ERRORS)

ERROR_RATES = schema_of(tables.ERROR_RATES)
TOKEN_CHURN = schema_of(tables.TOKEN_CHURN)
TOKEN_SPELLS = schema_of(tables.TOKEN_SPELLS)
TOKEN_LIFETIME = schema_of(tables.TOKEN_LIFETIME)
LATENCY = schema_of(tables.LATENCY)
FAILURE_SIGNATURES = schema_of(tables.FAILURE_SIGNATURES)
LOAD_PROFILE = schema_of(tables.LOAD_PROFILE)
HEAVY_ACTORS = schema_of(tables.HEAVY_ACTORS)
ANOMALIES = schema_of(tables.ANOMALIES)
DATA_QUALITY = schema_of(tables.DATA_QUALITY)
