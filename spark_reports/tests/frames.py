"""Frames of a few rows. A test names only the columns that matter, and all others have defaults."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.tables import Table, Type

DAY = date(2026, 11, 20)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
_BY_TYPE: dict[Type, Any] = {
    Type.TIMESTAMP: NOON,
    Type.DATE: DAY,
    Type.STRING: "",
    Type.INT: 0,
    Type.LONG: 0,
    Type.DOUBLE: 0.0,
    Type.BOOLEAN: False,
}
_BY_NAME: dict[str, Any] = {
    "platform": "ios",
    "previous_platform": "ios",
    "bridge": "waku",
    "number": 1,
    "deadline_us": 2_000_000,
    "is_complete": True,
}


def frame(spark: Any, table: Table, rows: Sequence[Mapping[str, Any]]) -> Any:
    defaults = {c.name: None if c.is_nullable else _BY_NAME.get(c.name, _BY_TYPE[c.type]) for c in table.columns}
    defaults["day"] = DAY
    for row in rows:
        assert row.keys() <= defaults.keys(), row
    schema = schema_of(table)
    return spark.createDataFrame([tuple((defaults | dict(row))[name] for name in schema.names) for row in rows], schema)


def rows_of(result: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return the chosen columns of every row, sorted."""
    return sorted((tuple(row) for row in result.select(*columns).collect()), key=repr)
