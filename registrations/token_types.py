"""The kinds of device tokens: each gateway registers those that it takes. The module is pure."""

from collections.abc import Iterable
from dataclasses import dataclass

_kinds: dict[int, "TokenKind"] = {}
UNKNOWN_PLATFORM = "none"


@dataclass(frozen=True, slots=True)
class TokenKind:
    """A kind of device token. ``number`` is stored, ``name`` is for people, ``platform`` for metrics and reports;
    ``devices`` are what people call those that have one, such as "iPhone".

    Where it ``has_topic`` a token belongs to one app, whose pushes are set up, break and are mended together.
    Otherwise an app topic that a client sends means nothing.
    """

    number: int
    name: str
    platform: str
    has_topic: bool = False
    devices: str = ""


def register(*kinds: TokenKind) -> None:
    """Make kinds of tokens known. Several gateways may take the same kind."""
    _kinds.update({kind.number: kind for kind in kinds})


def kinds() -> list[TokenKind]:
    """Return all kinds by their numbers."""
    return [_kinds[number] for number in sorted(_kinds)]


def choices() -> list[tuple[int, str]]:
    """Return the choices of a column that holds the number of a kind."""
    return [(kind.number, kind.name) for kind in kinds()]


def name_of(number: int) -> str:
    """Return the name of a kind for people, and the number of one that nobody knows any more."""
    return _kinds[number].name if number in _kinds else str(number)


def platform_of(number: int) -> str:
    """Return the word for a platform in metrics and reports."""
    return _kinds[number].platform if number in _kinds else UNKNOWN_PLATFORM


def devices_of(number: int) -> str:
    """Return what people call the devices with tokens of this kind."""
    return (_kinds[number].devices or _kinds[number].name) if number in _kinds else str(number)


def has_topic(number: int) -> bool:
    """Return whether tokens of this kind belong to one app."""
    return number in _kinds and _kinds[number].has_topic


def sql_case(column: str, words: Iterable[tuple[int, str]], otherwise: str) -> str:
    """Return the SQL that makes a word of the number in a column. The words are of our own code."""
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in words)
    return f"CASE {column} {cases} ELSE '{otherwise}' END" if cases else f"'{otherwise}'"


def sql_platform(column: str) -> str:
    """Return the SQL of `platform_of`."""
    return sql_case(column, [(kind.number, kind.platform) for kind in kinds()], UNKNOWN_PLATFORM)


def sql_with_topic() -> str:
    """Return the numbers of the kinds that have a topic, as a list in SQL."""
    return f"({', '.join(str(kind.number) for kind in kinds() if kind.has_topic) or 'NULL'})"
