"""Meanings of gorush's error strings: the first rule that matches decides, and an unknown string is transient.

gorush passes on Apple's reason verbatim, Google's human text without its code, and transport errors with the full
device token in them. So a rule gives a code of our own, and the text itself is passed on redacted alone. The rules are
data (`error_rules.yaml`, then the table `GatewayErrorRule`) and an argument here. This module uses neither Django nor
I/O, but for reading its file once.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import yaml

from notifications.messages import Outcome
from registrations.messages import TokenType

# gorush's names of the platforms, in its answers and counters.
NAMES: Mapping[int, str] = {TokenType.APN: "ios", TokenType.FIREBASE: "android"}
TOKEN_TYPES: Mapping[str, int] = {name: token_type for token_type, name in NAMES.items()}
ANY_PLATFORM = "any"  # of a rule for all platforms


class Match(StrEnum):
    EXACT = "exact"  # the text is the whole error
    PREFIX = "prefix"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """The meaning of an error. ``text`` is case-folded, as is every error that it is compared with.

    ``token_type`` is None for any platform. `Result` explains ``is_guarded`` and ``retry_base_seconds``.
    """

    code: str
    outcome: Outcome
    text: str
    match: Match = Match.CONTAINS
    token_type: int | None = None
    is_guarded: bool = False
    retry_base_seconds: float = 0.0

    def matches(self, error: str) -> bool:
        if self.match is Match.CONTAINS:
            return self.text in error
        return error == self.text if self.match is Match.EXACT else error.startswith(self.text)


# An unknown error is transient: another attempt loses nothing, and the error says nothing about the token.
UNKNOWN = ErrorRule("unknown", Outcome.TRANSIENT, "")


def classify(token_type: int, error: str, rules: Sequence[ErrorRule]) -> ErrorRule:
    """Return the rule that matches an error, or `UNKNOWN`. ``error`` comes without the device token
    (`redaction.without_token`).

    The client that registered chose the token. A token like `x509:` must not count as words of Apple.
    """
    text = error.casefold().strip()
    for rule in rules:
        if rule.token_type in {None, token_type} and rule.matches(text):
            return rule
    return UNKNOWN


# The rules that come with the server ----------------------------------------------------------------------------------

# In a folder of its own, because processes of the release before look for it there until they are replaced.
PATH = Path(__file__).parent / "rules" / "error_rules.yaml"
POSITION_STEP = 10  # leaves gaps between the rules for those of operators


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


def parse(text: str) -> tuple[SeedRule, ...]:
    """Return the rules of a file.

    Raises TypeError, KeyError or ValueError when an entry lacks a field, has an unknown one, or uses unknown words.
    """
    return tuple(_seed(number * POSITION_STEP, **entry) for number, entry in enumerate(yaml.safe_load(text), start=1))


def _seed(position: int, *, platform: str, match: str, guarded: bool = False, **rest: Any) -> SeedRule:
    if platform not in {*TOKEN_TYPES, ANY_PLATFORM}:
        raise ValueError(f"unknown platform {platform}")
    outcome = Outcome[rest.pop("class")].value  # "class" cannot be the name of a parameter
    return SeedRule(position, platform, Match(match).value, outcome=outcome, is_guarded=guarded, **rest)


@cache
def seed_rules() -> tuple[SeedRule, ...]:
    """Return the rules of the file that comes with the server."""
    return parse(PATH.read_text(encoding="utf-8"))


@cache
def shipped_rules() -> tuple[ErrorRule, ...]:
    """Return the rules of the file, ready to be matched."""
    return tuple(map(rule_of, seed_rules()))


def key_of(row: Any) -> str:
    """Return the permanent key of an entry of the file. It identifies its row, whatever operators change in that."""
    return f"{row.platform} {row.match} {row.text}"


def rule_of(row: Any) -> ErrorRule:
    """Return the rule that an entry of the file or a row of the table holds. Both have the same columns."""
    return ErrorRule(
        code=row.code,
        outcome=Outcome(row.outcome),
        text=row.text.casefold(),
        match=Match(row.match),
        token_type=TOKEN_TYPES.get(row.platform),
        is_guarded=row.is_guarded,
        retry_base_seconds=float(row.retry_base_seconds),
    )


# Redaction ------------------------------------------------------------------------------------------------------------

# Error texts lose all data of one device, for matching and as signatures that operators may see. gorush repeats the
# full token in transport errors, whatever its setting, and masks parts of it elsewhere. The client chooses the token
# that it registers, so its text must not count as words of Apple or Google.

# Enough for a percent-encoded token of 4 KiB, which stands before the part that matters.
MAX_ERROR_LENGTH = 32_768
MAX_SIGNATURE_LENGTH = 200
# A shorter part of a token may be an ordinary word, and is not replaced.
MIN_SECRET_PART = 8
TOKEN = "<token>"  # noqa: S105 - stands for a token
# Characters that Go leaves as they are in the path of a URL.
SAFE_IN_PATHS = "$&+,/:;=@"
# The number of characters that gorush masks at both ends of a token.
MARK = 10

# Go quotes the URL of a failed request, with \" for a quote inside. The quantifiers are possessive, so that matching
# takes linear time also when no quote closes the URL.
_QUOTED_URL = re.compile(r'"(https?://)(?:[^/?#@"\\\s]*@)?([^/?#"\\\s]*)(?:[^"\\]++|\\.)*("|$)', re.DOTALL)
_BARE_URL = re.compile(r"(https?://)(?:[^/?#@\"'\s]*@)?([^/?#\"'\s]+)[^\"'\s]*")
_PLACEHOLDERS = (
    (re.compile(r"[\w.+-]{1,64}@[\w.-]+"), "<email>"),
    (re.compile(r"(?:0x)?[0-9a-f]{16,}"), "<hex>"),
    (re.compile(r"[a-z0-9+/_=-]{20,}"), "<blob>"),
    (re.compile(r"\d+"), "<n>"),
)


def without_token(error: str, device_token: str, *, min_length: int = MIN_SECRET_PART) -> str:
    """Return the error, case-folded, without the token in any form and without what follows the host in a URL.

    A placeholder is left, because closing the gap could join two halves into a new word. A form of the token shorter
    than ``min_length`` stays: without every "e" an error would be unreadable.
    """
    text = error[:MAX_ERROR_LENGTH].casefold()
    for shape in _shapes(device_token):
        if len(shape) >= min_length:
            text = text.replace(shape, TOKEN)
    return _QUOTED_URL.sub(r'"\1\2"', text)


def signature(error: str, device_token: str) -> str:
    """Return the common part of errors of this kind (200 characters at most), or nothing if it may show the token."""
    return signature_of(without_token(error, device_token), device_token)


def signature_of(redacted: str, device_token: str) -> str:
    """Return the `signature` of an error that has passed `without_token` already, which is half of the work."""
    text = _BARE_URL.sub(r"\1\2", redacted)
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MAX_SIGNATURE_LENGTH].strip()
    # A short token was not replaced, and the replacements may have formed what looks like a longer one.
    return "" if any(shape in text for shape in _shapes(device_token)) else text


def _shapes(device_token: str) -> list[str]:
    """Return the forms in which errors may show the token, longest first: raw, percent-encoded, escaped, masked."""
    shapes = {
        device_token,
        unquote(device_token),
        quote_plus(device_token, errors="replace"),
        *(quote(device_token, safe=safe, errors="replace") for safe in ("", "/", SAFE_IN_PATHS)),
        *(json.dumps(device_token, ensure_ascii=as_ascii)[1:-1] for as_ascii in (True, False)),
    }
    middle = device_token[MARK:-MARK]
    if len(middle) >= MIN_SECRET_PART:
        shapes |= {middle, mask(device_token)}
    elif middle:
        shapes.add(mask(device_token))
    return sorted({shape.casefold() for shape in shapes} - {""}, key=len, reverse=True)


def mask(token: str) -> str:
    """Mask a token as gorush does in its answers while `log.hide_token` is on, its default.

    Of a short token all is masked, of a longer one the first and last ten characters wherever they occur.
    """
    if len(token) < 2 * MARK:
        return "*" * len(token)
    first, last = token[:MARK], token[-MARK:]
    return token.replace(last, "*" * MARK).replace(first, "*" * MARK)
