"""Query condition for a set of installations."""

from collections.abc import Collection
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Func, Value
from django.db.models.sql.compiler import SQLCompiler

InstallationKey = tuple[bytes, str]  # key hash, installation id


class IsOneOf(Func):
    """The condition that a row belongs to one of these installations.

    The table needs the columns ``public_key_hash`` and ``installation_id``. Two separate IN conditions would match all
    combinations: for a hundred keys with the same hundred installation ids, PostgreSQL would read ten thousand rows
    with all their lists.
    """

    output_field = models.BooleanField()

    def __init__(self, keys: Collection[InstallationKey]) -> None:
        super().__init__(
            "public_key_hash",
            "installation_id",
            Value([public_key_hash for public_key_hash, _ in keys], ArrayField(models.BinaryField())),
            Value([installation_id for _, installation_id in keys], ArrayField(models.TextField())),
        )

    def as_sql(  # type: ignore[override]
        self, compiler: SQLCompiler, _connection: BaseDatabaseWrapper, **_options: Any
    ) -> tuple[str, list[Any]]:
        parts = [compiler.compile(expression) for expression in self.source_expressions]
        key_hash, installation_id, hashes, ids = (sql for sql, _ in parts)
        sql = f"({key_hash}, {installation_id}) IN (SELECT * FROM unnest({hashes}::bytea[], {ids}::text[]))"
        return sql, [parameter for _, parameters in parts for parameter in parameters]
