"""The kinds of device tokens. Each gateway registers the kinds that it takes. The module does no I/O."""

from collections.abc import Iterable
from dataclasses import dataclass

_kinds: dict[int, "TokenKind"] = {}
UNKNOWN_PLATFORM = "none"


@dataclass(frozen=True, slots=True)
class TokenKind:
    """A kind of device token.

    ``number`` is the stored value, ``name`` the word for people, ``platform`` the word in metrics and reports, and
    ``devices`` the word for people's devices with such a token, such as "iPhone". With ``has_topic``, a token belongs
    to one app, and all pushes of an app depend on the same credentials. Otherwise app topics of clients are ignored.
    """

    number: int
    name: str
    platform: str
    has_topic: bool = False
    devices: str = ""


def register(*kinds: TokenKind) -> None:
    """Register kinds of tokens. Several gateways may take the same kind."""
    _kinds.update({kind.number: kind for kind in kinds})


def kinds() -> list[TokenKind]:
    """Return all kinds, sorted by number."""
    return [_kinds[number] for number in sorted(_kinds)]


def kind_of(number: int) -> TokenKind | None:
    """Return the kind of a number, or None for one that is no longer registered."""
    return _kinds.get(number)


def choices() -> list[tuple[int, str]]:
    """Return the choices of a column with the number of a kind."""
    return [(kind.number, kind.name) for kind in kinds()]


def platform_of(number: int) -> str:
    """Return the word for a platform in metrics and reports."""
    return _kinds[number].platform if number in _kinds else UNKNOWN_PLATFORM


def has_topic(number: int) -> bool:
    """Return whether tokens of this kind belong to one app."""
    return number in _kinds and _kinds[number].has_topic


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
    """Return an SQL expression that equals `platform_of`."""
    return sql_case(column, [(kind.number, kind.platform) for kind in kinds()], UNKNOWN_PLATFORM)


def sql_with_topic() -> str:
    """Return the numbers of the kinds with a topic, as an SQL list."""
    return f"({', '.join(str(kind.number) for kind in kinds() if kind.has_topic) or 'NULL'})"
