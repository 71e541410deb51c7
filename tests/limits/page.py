"""The numbers of docs/limits.md, and the tests that meet each of them from both sides.

A test names its line by `limit`, with a name in braces for each number, and gets the numbers as the page has them:

    @limit("installations of one key: {most}")
    def test_a_key_has_that_many_installations(most): ...

A number is written in digits or as a word, also of a part ("a quarter"). The name of a setting in code font counts as
one, too, and a test gets its name.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
Test = TypeVar("Test", bound=Callable[..., None])
Value = int | Fraction | str

_SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORDS: dict[str, Value] = dict(zip(_SMALL, range(2, 13), strict=True)) | {"twenty": 20, "half": Fraction(1, 2)}
PARTS = {"third": 3, "quarter": 4, "fifth": 5, "tenth": 10}
SETTING = r"`[A-Z][A-Z0-9_]+\b[^`]*`"
NUMBER = re.compile(
    rf"(?P<setting>{SETTING})|`[^`]*`"
    r"|(?P<digits>\b\d{1,3}(?: \d{3})+\b|\b\d+(?:\.\d+)?\b)"
    rf"|(?P<part>\b(?:an?|{'|'.join(WORDS)}) (?:{'|'.join(PARTS)})s?\b)"
    rf"|(?P<word>\b(?:{'|'.join(WORDS)})\b)"
)


class Row(NamedTuple):
    """The words of a test for one line of the page, and the places and values of their numbers (none without them)."""

    words: str
    found: dict[int, Value]


ROWS: list[Row] = []


def text() -> str:
    """Return the page as plain text: without headings, emphasis and targets of links, and in one line."""
    lines = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
    prose = " ".join(line for line in lines if not line.startswith("#"))
    return " ".join(re.sub(r"\]\([^)]*\)|[\[*†]", "", prose).replace(" :", ":").split())


PAGE = text()
SETTINGS = frozenset(re.findall(r"^\| `([A-Z0-9_]+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))


def numbers(page: str) -> dict[int, Value]:
    """Return each number of a text by its place, and the name of each setting."""
    found = {match.start(): _value(match) for match in NUMBER.finditer(page)}
    return {place: value for place, value in found.items() if not isinstance(value, str) or value in SETTINGS}


def _value(match: re.Match[str]) -> Value:
    if match["setting"]:
        return re.findall(r"\w+", match[0])[0]
    if match["digits"]:
        return Fraction(match[0]) if "." in match[0] else int(match[0].replace(" ", ""))
    if match["part"]:
        count, part = match[0].split()
        return Fraction(WORDS.get(count, 1)) / PARTS[part.removesuffix("s")]
    return WORDS[match[0]] if match["word"] else ""


NUMBERS = numbers(PAGE)


def limit(words: str) -> Callable[[Test], Test]:
    """Give a test the numbers of these words of the page, each under its name in braces.

    A "…" stands for other words. Words that are not on the page, or there twice, leave the test without numbers, and
    `tests.test_documents` tells.
    """
    names = re.findall(r"{(\w+)}", words)
    parts = re.split(r"{(\w+)}", words)
    pattern = "".join(re.escape(part) if n % 2 == 0 else f"(?P<{part}>.{{1,30}}?)" for n, part in enumerate(parts))
    pattern = pattern.replace("…", ".{1,60}?")
    matches = list(re.finditer(pattern, PAGE))
    places = [matches[0].start(name) for name in names] if len(matches) == 1 else []
    row = Row(words, {place: NUMBERS[place] for place in places if place in NUMBERS})
    ROWS.append(row)
    values = [row.found.get(place) for place in places] or [None] * len(names)
    return pytest.mark.parametrize(names, [pytest.param(*values, id=words)])
