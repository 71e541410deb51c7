"""Allowlist for the collector: only attributes with these names leave, and only values that identify nobody.

Device tokens, access tokens, keys, hashes, topics, installations and JIDs have no name here. They would also be refused
as the value of another attribute.
"""

import re
from collections.abc import Mapping

# Our name of an attribute, and its name in the collector: that of the semantic conventions, where there is one.
NAMES: Mapping[str, str] = {
    "attempt": "pushserver.attempt",
    "code": "pushserver.code",
    "count": "pushserver.count",
    "bridge": "pushserver.bridge",
    "gateway": "pushserver.gateway",
    "message_type": "pushserver.message_type",
    "node": "server.address",
    "outcome": "pushserver.outcome",
    "path": "pushserver.path",
    "queue": "pushserver.queue",
    "reason": "pushserver.reason",
    "step": "pushserver.step",
    "wait_ms": "pushserver.wait_ms",
}
# Places in the code. We make their values, from names of files and functions.
LOCATIONS: Mapping[str, str] = {
    "error": "error.type",
    "exception": "exception.type",
    "function": "code.function.name",
    "line": "code.line.number",
    "logger": "pushserver.logger",
    "location": "pushserver.location",
    "stack": "exception.stacktrace",
}
EXPORTED = frozenset({*NAMES.values(), *LOCATIONS.values()})
Value = str | int | float | bool

_WORD = re.compile(r"[A-Za-z0-9_.:\[\] -]{0,64}")
_PLACE = re.compile(r"[A-Za-z0-9_.:<>/, \n-]{0,4000}")
# Keys, hashes, tokens and UUIDs have such sequences of characters. Words and host names do not. Names in the code may
# be longer than 24 letters, but do not consist of hex digits.
_DIGITS = re.compile(r"[0-9A-Fa-f]{16}")
_SECRET = re.compile(r"[0-9A-Fa-f]{16}|[A-Za-z0-9]{24}")


def is_allowed(name: str, value: object) -> bool:
    """Return whether an attribute may leave. ``name`` is its name in the collector."""
    if name not in EXPORTED or not isinstance(value, Value):
        return False
    if not isinstance(value, str):
        return True
    is_place = name in LOCATIONS.values()
    shape, secret = (_PLACE, _DIGITS) if is_place else (_WORD, _SECRET)
    return bool(shape.fullmatch(value)) and not secret.search(value.replace("-", ""))


def exported(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return attributes with their names in the collector. An unknown name stays, so that `is_allowed` refuses it."""
    return {NAMES.get(word) or LOCATIONS.get(word) or word: value for word, value in attributes.items()}


def only_allowed(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes that may leave, with their names in the collector."""
    found = exported(attributes)
    return {name: value for name, value in found.items() if isinstance(value, Value) and is_allowed(name, value)}
