"""Passwords that anybody would guess who knows what this server is."""

from typing import Any

from django.core.exceptions import ValidationError

from kit.operations import parts

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
# So much of a password has to be something else.
REST_CHARACTERS = 8


class NoWordOfOurs:
    """Refuses passwords that are little more than words of this server, whatever case they are in."""

    def validate(self, password: str, user: Any = None) -> None:  # noqa: ARG002 - the signature of a validator
        """Raise ValidationError when too little is left without the words."""
        rest = password.casefold()
        for word in (*WORDS, *(part.name for part in parts())):
            rest = rest.replace(word, "")
        if len(rest) < min(REST_CHARACTERS, len(password)) and len(rest) < len(password):
            raise ValidationError(self.get_help_text(), code="word_of_ours")

    def get_help_text(self) -> str:
        """Return what is asked for."""
        return f"Beside the name of this server and of its parts, a password has {REST_CHARACTERS} characters at least."
