"""What gorush's error strings mean: the first rule that matches decides, and an unknown string is transient.

gorush passes on Apple's reason verbatim, Google's human text without its code, and transport errors with the full
device token in them. So a rule gives a code of our own, and the text itself goes nowhere. The rules are data
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
    """What an error means. ``text`` is case-folded, as is every error it is compared with.

    ``token_type`` is None for any platform. ``is_guarded`` and ``retry_base_seconds`` are passed on in the result, and
    explained there.
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


# An unknown error is transient: nothing is lost by sending again, and nothing is known about the token.
UNKNOWN = ErrorRule("unknown", Outcome.TRANSIENT, "")


def classify(token_type: int, error: str, rules: Sequence[ErrorRule]) -> ErrorRule:
    """Return the rule that an error falls under. ``error`` comes without the device token (`redaction.without_token`).

    The token is chosen by the client that registered: one like `x509:` must not speak for Apple.
    """
    text = error.casefold().strip()
    for rule in rules:
        if rule.token_type in {None, token_type} and rule.matches(text):
            return rule
    return UNKNOWN
