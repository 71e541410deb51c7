"""Meanings of gorush's error strings: the first rule that matches decides, and an unknown string is transient.

gorush passes on Apple's reason verbatim, Google's human text without its code, and transport errors with the full
device token in them. So a rule gives a code of our own, and the text itself is not passed on. The rules are data
(`error_rules.yaml`, then the table `GatewayErrorRule`) and an argument here. This module uses neither Django nor I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from notifications.messages import Outcome


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
