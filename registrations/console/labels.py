"""Words for the kinds of device tokens: for people, and as SQL expressions of pages and reports."""

from collections.abc import Iterable

from registrations.token_types import UNKNOWN_PLATFORM, kind_of, kinds


def name_of(number: int) -> str:
    """Return the name of a kind for people, or the number of a kind that is no longer registered."""
    kind = kind_of(number)
    return kind.name if kind else str(number)


def devices_of(number: int) -> str:
    """Return the word for devices with tokens of this kind."""
    kind = kind_of(number)
    return (kind and kind.devices) or name_of(number)


def sql_case(column: str, words: Iterable[tuple[int, str]], otherwise: str) -> str:
    """Return an SQL expression for the word of a column's number. The words must be constants of our code."""
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in words)
    return f"CASE {column} {cases} ELSE '{otherwise}' END" if cases else f"'{otherwise}'"


def sql_platform(column: str) -> str:
    """Return an SQL expression that equals `token_types.platform_of`."""
    return sql_case(column, [(kind.number, kind.platform) for kind in kinds()], UNKNOWN_PLATFORM)


def sql_with_topic() -> str:
    """Return the numbers of the kinds with a topic, as an SQL list."""
    return f"({', '.join(str(kind.number) for kind in kinds() if kind.has_topic) or 'NULL'})"
