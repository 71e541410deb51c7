"""`error_rules.yaml`: the table of errors as it comes with the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from notifications import messages
from notifications.gateways.gorush.errors import ErrorRule, Match
from notifications.messages import Outcome

PATH = Path(__file__).with_name("error_rules.yaml")
POSITION_STEP = 10  # between two rules there is room for those of operators
TOKEN_TYPES: Mapping[str, int | None] = {**messages.TOKEN_TYPES, "any": None}


@dataclass(frozen=True, slots=True)
class SeedRule:
    """One entry of the file, in the words of the table. ``position`` follows from its place."""

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
        """Names the entry for good: what operators changed of its row is recognised by it."""
        return f"{self.platform} {self.match} {self.text}"


def parse(text: str) -> tuple[SeedRule, ...]:
    """Raises TypeError, KeyError or ValueError when an entry lacks something, has too much, or uses unknown words."""
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
    outcome = Outcome[rest.pop("class")]  # no name that Python allows
    if rest or platform not in TOKEN_TYPES:
        raise ValueError(f"{platform} {match} {text}: unknown platform or {sorted(rest)}")
    return SeedRule(
        position, platform, Match(match).value, text, outcome.value, code, guarded, retry_base_seconds, remark
    )


@cache
def seed_rules() -> tuple[SeedRule, ...]:
    return parse(PATH.read_text(encoding="utf-8"))


@cache
def shipped_rules() -> tuple[ErrorRule, ...]:
    """What the file says, ready to be matched."""
    return tuple(
        error_rule(s.platform, s.match, s.text, s.outcome, s.code, s.is_guarded, s.retry_base_seconds)
        for s in seed_rules()
    )


def error_rule(
    platform: str, match: str, text: str, outcome: str, code: str, is_guarded: bool, retry_base_seconds: int
) -> ErrorRule:
    """Of file or table: both use the same words."""
    return ErrorRule(
        code=code,
        outcome=Outcome(outcome),
        text=text.casefold(),
        match=Match(match),
        token_type=TOKEN_TYPES[platform],
        is_guarded=is_guarded,
        retry_base_seconds=float(retry_base_seconds),
    )
