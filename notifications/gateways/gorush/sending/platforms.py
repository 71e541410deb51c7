"""The words and numbers that gorush has for the platforms of our token types, in requests and in all that it says."""

from collections.abc import Mapping

from registrations.messages import TokenType

NUMBERS: Mapping[int, int] = {TokenType.APN: 1, TokenType.FIREBASE: 2}
NAMES: Mapping[int, str] = {TokenType.APN: "ios", TokenType.FIREBASE: "android"}
TOKEN_TYPES: Mapping[str, int] = {name: token_type for token_type, name in NAMES.items()}
