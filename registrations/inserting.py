"""Inserting many rows at once for a fraction of the CPU time of `bulk_create`, which prepares each value by itself."""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection, models
from django.db.models import Field, Model


def insert_all(rows: Sequence[Model]) -> None:
    """Insert rows of one model, which hold ready values, and give them their ids. Raises IntegrityError like `save`."""
    if not rows:
        return
    model = type(rows[0])
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]  # noqa: SLF001 - the documented way
    columns = ", ".join(f'"{field.column}"' for field in fields)
    arrays = ", ".join(f"%s::{field.db_type(connection)}[]" for field in fields)
    with connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{model._meta.db_table}" ({columns}) SELECT * FROM unnest({arrays}) RETURNING id',  # noqa: S608, SLF001 - names from the model
            [_column(rows, field) for field in fields],
        )
        for row, (row_id,) in zip(rows, cursor.fetchall(), strict=True):
            row.pk = row_id


def _column(rows: Sequence[Model], field: "Field[Any, Any]") -> list[Any]:
    values = [getattr(row, field.attname) for row in rows]
    plain = _plain(field)
    return [value if value is None else plain(value) for value in values] if plain else values


def _plain(field: "Field[Any, Any]") -> Callable[[Any], Any] | None:
    """An array takes values of one type: no members of enums beside strings and numbers."""
    if isinstance(field, models.TextField):
        return str
    return int if isinstance(field, models.IntegerField) else None
