"""Search terms of a list, turned into conditions that an index can answer.

A hash is found by its first digits, and an id as a whole. A chat key must not appear in the address bar, so it never
arrives here: `pushserver.console.pages.find` turns it into its hash first.
"""

import re
from collections.abc import Iterable
from uuid import UUID

from django.db.models import Q

# Fewer digits would match too many rows, and are more likely a mistake.
MIN_DIGITS = 8
# Hex digits of the longest short identifier and of a key hash (64 bytes). No hash has a length between the two.
SHORT_ID_DIGITS = 64
KEY_HASH_DIGITS = 128
_HEX = re.compile("[0-9a-fA-F]+")
_NUMBER = re.compile("[0-9]{1,18}")
_WORD = re.compile(r"[\w@.+-]{1,30}")
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")


def is_number(term: str) -> bool:
    """Return whether the term can be the number of a row."""
    return _NUMBER.fullmatch(term) is not None


def is_word(term: str) -> bool:
    """Return whether the term is a word. A word is shorter than any key, so it may appear in an address."""
    return _WORD.fullmatch(term) is not None


def hash_digits(term: str) -> str:
    """Return the digits of a term that is the beginning of a hash, without 0x, or an empty string for other terms."""
    digits = term.removeprefix("0x").lower()
    has_size = MIN_DIGITS <= len(digits) <= SHORT_ID_DIGITS or len(digits) == KEY_HASH_DIGITS
    return digits if has_size and _HEX.fullmatch(digits) else ""


def is_id(term: str) -> bool:
    """Return whether the term is a UUID."""
    return _UUID.fullmatch(term) is not None


def spellings(term: str) -> set[str]:
    """Return the spellings of a UUID that clients use. Tables store an id as the client spelled it, as text."""
    same = UUID(term)
    usual = {str(same), same.hex}
    return {term, *usual, *(text.upper() for text in usual)}


def by_hash(digits: str, fields: Iterable[tuple[str, int]]) -> Q:
    """Return the condition that a field begins with these digits. ``fields`` has the size of each field in bytes."""
    condition = Q()
    for field, size_bytes in fields:
        if len(digits) <= 2 * size_bytes:
            condition |= _begins_with(field, digits, size_bytes)
    return condition


def _begins_with(field: str, digits: str, size_bytes: int) -> Q:
    if len(digits) == 2 * size_bytes:
        return Q(**{field: bytes.fromhex(digits)})
    condition = Q(**{f"{field}__gte": _padded(digits)})
    above = f"{int(digits, 16) + 1:0{len(digits)}x}"
    if len(above) == len(digits):  # otherwise all digits are f, and there is no upper bound
        condition &= Q(**{f"{field}__lt": _padded(above)})
    return condition


def _padded(digits: str) -> bytes:
    return bytes.fromhex(digits + "0" * (len(digits) % 2))
