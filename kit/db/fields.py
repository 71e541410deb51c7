"""Column types that PostgreSQL or Django lack."""

from decimal import Decimal
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models


class Uint64Field(models.DecimalField):  # type: ignore[type-arg]
    """An unsigned 64-bit integer: a numeric(20) column, an int in Python. PostgreSQL's bigint is signed."""

    _pyi_private_get_type: int  # type: ignore[assignment]
    _pyi_private_set_type: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"max_digits": 20, "decimal_places": 0}
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        name, path, args, kwargs = super().deconstruct()
        del kwargs["max_digits"], kwargs["decimal_places"]
        return name, path, args, kwargs

    def from_db_value(self, value: Decimal | None, *_args: object) -> int | None:
        return None if value is None else int(value)

    def to_python(self, value: Any) -> Any:
        return None if value is None else int(value)


class BytesField(models.BinaryField):  # type: ignore[type-arg]
    """A bytea column whose values are always bytes, where Django's own field may return a memoryview.

    It also keeps bulk inserts fast. Django sends a column as one array only if the field has no `get_placeholder`, and
    BinaryField has one that PostgreSQL does not need.
    """

    _pyi_private_get_type: bytes

    @property
    def get_placeholder(self) -> None:
        raise AttributeError("PostgreSQL takes bytes as they are")

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002
        return value

    def from_db_value(self, value: bytes | memoryview | None, *_args: object) -> bytes | None:
        return None if value is None else bytes(value)


class BytesListField(ArrayField):  # type: ignore[type-arg]
    """A bytea[] column: a list of bytes.

    It is sent as the text of the whole array. For psycopg, which would escape each item by itself, a thousand items
    cost as much as all else about their row.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"base_field": BytesField(), **kwargs})

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: ARG002
        items = ",".join([rf'"\\x{item.hex()}"' for item in value])
        return f"{{{items}}}"
