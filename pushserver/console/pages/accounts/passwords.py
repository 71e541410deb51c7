"""Refusal of passwords that are easy to guess for somebody who has seen this server."""

from typing import Any

from django.core.exceptions import ValidationError

from pushserver.console.pages.labels import PASSWORD_RULE
from pushserver.console.parts import parts

# The words of V6.1.2 in docs/asvs.md, beside the names of gateways and bridges.
WORDS = (
    "status",
    "push",
    "notification",
    "server",
    "console",
    "admin",
    "password",
    "operator",
)
# Characters of a password that are no part of these words, at least.
REST_CHARACTERS = 8


class NoWordOfOurs:
    """Validator that refuses passwords that are little more than words of this server, in any case."""

    def validate(self, password: str, user: Any = None) -> None:  # noqa: ARG002 - the signature of a validator
        """Raise ValidationError when fewer than REST_CHARACTERS are left without the words."""
        rest = password.casefold()
        for word in (*WORDS, *(part.name for part in parts())):
            rest = rest.replace(word, "")
        if len(rest) < min(REST_CHARACTERS, len(password)) and len(rest) < len(password):
            raise ValidationError(self.get_help_text(), code="word_of_ours")

    def get_help_text(self) -> str:
        return PASSWORD_RULE.format(count=REST_CHARACTERS)
