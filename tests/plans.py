"""Generic plans of SQL statements: the plans that PostgreSQL makes without knowing the parameters."""

import re

from django.db import connection

_PARAMETER = re.compile(r"%(?:[(]([a-z_0-9]+)[)])?[bs]")
# Types of parameters that PostgreSQL cannot infer from the expressions they are compared with.
_TYPES = {
    **dict.fromkeys(
        ("now", "late", "later", "noted_since", "nothing_before", "first", "last", "before"), "timestamptz"
    ),
    **dict.fromkeys(("since", "today"), "date"),
    "retry_after": "interval",
    "max_bytes": "bigint",
}


def generic_plan(sql: str) -> str:
    """Return the generic plan of a statement, which serves all values of its parameters."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1] or str(len(numbers))
        parameter = f"${numbers.setdefault(name, len(numbers) + 1)}"
        return f"{parameter}::{_TYPES[name]}" if name in _TYPES else parameter

    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE planned AS {_PARAMETER.sub(numbered, sql)}")
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        values = ", ".join("now()" if _TYPES.get(name) in ("timestamptz", "date") else "NULL" for name in numbers)
        cursor.execute(f"EXPLAIN EXECUTE planned{f' ({values})' if values else ''}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE planned")
        cursor.execute("RESET plan_cache_mode")
    return plan
