"""Redaction of error texts: without any data of one device, for matching and as signatures that operators may see.

gorush repeats the full device token in transport errors, whatever its setting, and masks parts of it elsewhere. The
client chooses the token that it registers, so its text must not count as words of Apple or Google.
"""

import json
import re
from urllib.parse import quote, quote_plus, unquote

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
_ANY_PLACEHOLDER = re.compile(r"<(?:token|email|hex|blob|n)>")


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


def longest_literal(signature: str) -> str:
    """Return the longest part of a signature without placeholders, as the text of a new rule."""
    return max((part.strip() for part in _ANY_PLACEHOLDER.split(signature)), key=len)


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
