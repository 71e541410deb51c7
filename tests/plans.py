"""The plans that PostgreSQL makes of statements, whatever their parameters are."""

import re

from django.db import connection

_PARAMETER = re.compile(r"%(?:[(]([a-z_0-9]+)[)])?[bs]")
# PostgreSQL cannot tell the types of these from what they are compared with.
_TYPES = {
    **dict.fromkeys(
        ("now", "late", "later", "noted_since", "nothing_before", "first", "last", "before"), "timestamptz"
    ),
    **dict.fromkeys(("since", "today"), "date"),
    "retry_after": "interval",
    "max_bytes": "bigint",
}


def generic_plan(sql: str) -> str:
    """Return the plan that serves all values of the parameters, as a connection keeps it."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1] or str(len(numbers))
        place = f"${numbers.setdefault(name, len(numbers) + 1)}"
        return f"{place}::{_TYPES[name]}" if name in _TYPES else place

    with connection.cursor() as cursor:
        cursor.execute(f"PREPARE planned AS {_PARAMETER.sub(numbered, sql)}")
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        values = ", ".join("now()" if _TYPES.get(name) in ("timestamptz", "date") else "NULL" for name in numbers)
        cursor.execute(f"EXPLAIN EXECUTE planned{f' ({values})' if values else ''}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE planned")
        cursor.execute("RESET plan_cache_mode")
    return plan
