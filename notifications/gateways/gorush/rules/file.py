"""`error_rules.yaml`: the error rules that come with the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from notifications.gateways.gorush.answers.errors import ErrorRule, Match
from notifications.gateways.gorush.sending import platforms
from notifications.messages import Outcome

PATH = Path(__file__).with_name("error_rules.yaml")
POSITION_STEP = 10  # leaves gaps between the rules for those of operators
MATCHED_COLUMNS = ("platform", "match", "text", "outcome", "code", "is_guarded", "retry_base_seconds")
TOKEN_TYPES: Mapping[str, int | None] = {**platforms.TOKEN_TYPES, "any": None}


@dataclass(frozen=True, slots=True)
class SeedRule:
    """One entry of the file, with the words of the table. ``position`` follows from its place in the file."""

    position: int
    platform: str
    match: str
    text: str
    outcome: str
    code: str
    is_guarded: bool = False
    retry_base_seconds: int = 0
    remark: str = ""

    @property
    def key(self) -> str:
        """Return the permanent key of the entry. It identifies the row, whatever operators changed in it."""
        return f"{self.platform} {self.match} {self.text}"


def parse(text: str) -> tuple[SeedRule, ...]:
    """Return the rules of a file.

    Raises TypeError, KeyError or ValueError when an entry lacks a field, has an unknown one, or uses unknown words.
    """
    return tuple(_seed(number * POSITION_STEP, **entry) for number, entry in enumerate(yaml.safe_load(text), start=1))


def _seed(
    position: int,
    *,
    platform: str,
    match: str,
    text: str,
    code: str,
    guarded: bool = False,
    retry_base_seconds: int = 0,
    remark: str = "",
    **rest: Any,
) -> SeedRule:
    outcome = Outcome[rest.pop("class")]  # "class" cannot be the name of a parameter
    if rest or platform not in TOKEN_TYPES:
        raise ValueError(f"{platform} {match} {text}: unknown platform or {sorted(rest)}")
    return SeedRule(
        position, platform, Match(match).value, text, outcome.value, code, guarded, retry_base_seconds, remark
    )


@cache
def seed_rules() -> tuple[SeedRule, ...]:
    """Return the rules of the file that comes with the server."""
    return parse(PATH.read_text(encoding="utf-8"))


@cache
def shipped_rules() -> tuple[ErrorRule, ...]:
    """Return the rules of the file, ready to be matched."""
    return tuple(map(rule_of, seed_rules()))


def rule_of(row: Any) -> ErrorRule:
    """Return the rule that an entry of the file or a row of the table holds. Both have the same columns."""
    return _rule(**{column: getattr(row, column) for column in MATCHED_COLUMNS})


@lru_cache(maxsize=1024)  # the table is read every few seconds, and its rules rarely change
def _rule(
    platform: str, match: str, text: str, outcome: str, code: str, is_guarded: bool, retry_base_seconds: int
) -> ErrorRule:
    return ErrorRule(
        code=code,
        outcome=Outcome(outcome),
        text=text.casefold(),
        match=Match(match),
        token_type=TOKEN_TYPES[platform],
        is_guarded=is_guarded,
        retry_base_seconds=float(retry_base_seconds),
    )
