"""gorush's names and numbers for the platforms of our token types, in its requests, answers and counters."""

from collections.abc import Mapping

from registrations.messages import TokenType

NUMBERS: Mapping[int, int] = {TokenType.APN: 1, TokenType.FIREBASE: 2}
NAMES: Mapping[int, str] = {TokenType.APN: "ios", TokenType.FIREBASE: "android"}
TOKEN_TYPES: Mapping[str, int] = {name: token_type for token_type, name in NAMES.items()}
