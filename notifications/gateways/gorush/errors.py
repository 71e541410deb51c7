"""What gorush's error strings mean: the first rule that matches decides, and an unknown string is transient.

gorush passes on Apple's reason verbatim, Google's human text without its code, and transport errors with the full
device token in them. So rules give a code of our own, and the text itself goes nowhere. The rules are data
(`error_rules.yaml`, then the table `GatewayErrorRule`) and an argument here. No Django and no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from notifications.messages import Outcome


class Match(StrEnum):
    EXACT = "exact"  # the whole error
    PREFIX = "prefix"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """``text`` is case-folded, as is every error it is compared with. ``token_type`` is None for any platform.

    ``is_guarded`` and ``retry_base_seconds`` are passed on in the result, and explained there.
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


# Nothing is lost by trying again, and nothing is known about the token.
UNKNOWN = ErrorRule("unknown", Outcome.TRANSIENT, "")


def classify(token_type: int, error: str, rules: Sequence[ErrorRule]) -> ErrorRule:
    """The rule that an error falls under; ``error`` comes without the device token (`redaction.without_token`).

    Its author is whoever registered: a token like `x509:` must not speak for Apple.
    """
    text = error.casefold().strip()
    for rule in rules:
        if rule.token_type in {None, token_type} and rule.matches(text):
            return rule
    return UNKNOWN
