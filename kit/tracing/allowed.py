"""What may leave for a collector: attributes of these names, and of them only values that name nobody.

Device tokens, access tokens, keys, hashes, topics, installations and JIDs have no name here, and would not pass as the
value of another one either.
"""

import re
from collections.abc import Mapping

# Our word for an attribute, and what a collector calls it: by the semantic conventions, where they have a name.
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
# Where in the code something happened. These are made by ourselves, of names of files and functions.
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
# Of a key, a hash, a token or a UUID so many characters follow each other. Of words and host names they do not; names
# in the code may be longer, but are no digits.
_DIGITS = re.compile(r"[0-9A-Fa-f]{16}")
_SECRET = re.compile(r"[0-9A-Fa-f]{16}|[A-Za-z0-9]{24}")


def is_allowed(name: str, value: object) -> bool:
    """Return whether an attribute may leave, under the name that a collector gets."""
    if name not in EXPORTED or not isinstance(value, Value):
        return False
    if not isinstance(value, str):
        return True
    is_place = name in LOCATIONS.values()
    shape, secret = (_PLACE, _DIGITS) if is_place else (_WORD, _SECRET)
    return bool(shape.fullmatch(value)) and not secret.search(value.replace("-", ""))


def exported(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return attributes under the names that a collector gets. A word that is not known stays, and is refused."""
    return {NAMES.get(word) or LOCATIONS.get(word) or word: value for word, value in attributes.items()}


def only_allowed(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return those attributes that may leave, under the names that a collector gets."""
    found = exported(attributes)
    return {name: value for name, value in found.items() if isinstance(value, Value) and is_allowed(name, value)}
