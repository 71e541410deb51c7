"""Check of a migration's SQL for statements that stop a running server. The module is pure: SQL in, reasons out.

A migration runs while the version before it serves. Meanwhile it must not

* rewrite a table, or read it from end to end, under a lock that blocks everybody,
* remove what the running version reads or writes, or add a column that the running version would have to fill.
"""

import re
from collections.abc import Iterable, Iterator

# Statement, and the reason against it. The first group is the table.
_TABLE = r'"?(\w+)"?'
_ALTER = rf"^ALTER TABLE (?:ONLY )?{_TABLE} "
RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), reason)
    for pattern, reason in (
        (
            rf"^CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON {_TABLE}",
            "blocks writers while it builds an index: make it concurrently (kit.db.concurrently, or RunSQL)",
        ),
        (
            rf"^DROP INDEX (?!CONCURRENTLY)(?:IF EXISTS )?{_TABLE}",
            "blocks everybody while it waits for its lock: drop it concurrently",
        ),
        (
            rf"{_ALTER}.*ADD CONSTRAINT \S+ (?:FOREIGN KEY|CHECK)(?!.*NOT VALID)",
            "reads the whole table under a lock: add it NOT VALID, and validate it in the next migration",
        ),
        (
            rf"{_ALTER}.*ADD CONSTRAINT \S+ (?:UNIQUE|PRIMARY KEY|EXCLUDE)(?!.*USING INDEX)",
            "builds an index under a lock: make it concurrently first, and add the constraint USING INDEX",
        ),
        (
            rf"{_ALTER}.*ALTER COLUMN \S+ TYPE ",
            "rewrites the whole table under a lock: add a column, and copy in steps",
        ),
        (
            rf"{_ALTER}.*ALTER COLUMN \S+ SET NOT NULL",
            "reads the whole table under a lock: add a CHECK NOT VALID, validate it, set NOT NULL one migration later",
        ),
        (
            rf"{_ALTER}.*ADD COLUMN .*(?:GENERATED ALWAYS AS|DEFAULT .*(?:random|clock_timestamp|uuid|nextval)\w*\()",
            "rewrites the whole table under a lock: add it without a value, and fill it in steps",
        ),
        (
            rf"{_ALTER}.*ADD COLUMN .* (?:UNIQUE|REFERENCES|PRIMARY KEY)\b",
            "builds an index or reads the table under a lock",
        ),
        (
            rf"{_ALTER}.*ALTER COLUMN \S+ DROP DEFAULT",
            "leaves the running version without a value to write: use db_default",
        ),
        (
            rf"{_ALTER}.*(?:DROP COLUMN|RENAME COLUMN|RENAME TO)",
            "removes a part that the running version uses: stop using it in one release, remove it in the next",
        ),
        (rf"^(?:DROP TABLE|TRUNCATE)(?: IF EXISTS)? {_TABLE}", "removes a table that the running version uses"),
        (rf"^(?:CLUSTER|VACUUM FULL) {_TABLE}", "rewrites the whole table under a lock"),
        (rf"^(?:WITH .*)?UPDATE {_TABLE}", "changes rows of a big table in one transaction: do it in steps, outside"),
        (
            rf"^(?:WITH .*)?DELETE FROM {_TABLE}",
            "deletes rows of a big table in one transaction: do it in steps, outside",
        ),
    )
)
_SPLIT = re.compile(r";\s*(?:\n|$)")


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script without comments and with single blanks."""
    plain = re.sub(r"--[^\n]*", "", script)
    for part in _SPLIT.split(plain):
        if statement := " ".join(part.split()).rstrip(";"):
            yield statement


def faults(script: Iterable[str], big: frozenset[str], indexes: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield statements of one migration that harm a big table, with the reason.

    ``big`` are tables that exist before the migration; ``indexes`` has the table of each index.
    """
    for statement in script:
        for pattern, reason in RULES:
            found = pattern.search(statement)
            if found and indexes.get(found.group(1), found.group(1)) in big:
                yield statement, reason
                break
