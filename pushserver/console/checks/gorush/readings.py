"""gorush's reports about itself: `/api/config`, `/version` and `/api/stat/app` (gorush.md, 1.1 and 1.7).

No answer is trusted: an unclean one counts as missing. Values are read one by one, as flags, numbers or known words, so
that no secret of a configuration gets any further.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

from notifications.gateways.gorush.errors import NAMES

MAX_DEPTH = 8  # gorush's own configuration has three levels
# Each value is stored with the keys above it.
MAX_KEY_LENGTH = 100
MAX_DIGITS = 18
VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?!\d)")
TRUE, FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})

# PyYAML's C parser recurses into a document when it builds values, and crashes on deep ones. The events of a document
# are a flat stream.
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True, slots=True)
class Config:
    """The running configuration, by gorush's own names (``core.sync``).

    A value is None when it is missing, or has no form that this module reads.
    """

    values: Mapping[str, str] = field(repr=False)

    def text(self, name: str) -> str | None:
        """Return a value as text."""
        return self.values.get(name)

    def flag(self, name: str) -> bool | None:
        """Return a value that is a boolean."""
        word = self.values.get(name, "").lower()
        return word in TRUE if word in TRUE | FALSE else None

    def number(self, name: str) -> int | None:
        """Return a value that is a whole number."""
        digits = self.values.get(name, "")
        is_number = digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= MAX_DIGITS
        return int(digits) if is_number else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The readings of one gorush in one check. A part is None when that answer was missing or unreadable.

    ``counters`` are the pushes that failed at Apple (``ios``) or Google (``android``) since gorush started.
    """

    is_reachable: bool
    config: Config | None = None
    version: tuple[int, ...] | None = None
    counters: Mapping[str, int] | None = None


def read_config(body: bytes) -> Config | None:
    """Return the configuration, or None for another document.

    It is YAML with sections, of which at least ``core`` has to be there, because a page of a proxy may be YAML too.
    """
    try:
        values = dict(_flatten(yaml.parse(body, Loader=_Loader)))
    except (yaml.YAMLError, ValueError):
        return None
    return Config(values) if any(name.startswith("core.") for name in values) else None


def _flatten(events: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """Yield every scalar with its dotted name. An item of a list has the list's name and a star.

    Raises ValueError for what gorush never writes: anchors, aliases, tags, keys that are no text or long, several
    documents, great depth.
    """
    path: list[_Collection] = []
    for event in events:
        if getattr(event, "anchor", None) or getattr(event, "tag", None) or len(path) > MAX_DEPTH:
            raise ValueError
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                name = path[-1].name_of_value() if path else ""
                path.append(_Collection(name, is_list=isinstance(event, yaml.SequenceStartEvent)))
            case yaml.CollectionEndEvent():
                path.pop()
            case yaml.ScalarEvent() if path and path[-1].takes_key():
                path[-1].key = event.value
            case yaml.ScalarEvent() if path:
                yield path[-1].name_of_value(), event.value


@dataclass(slots=True)
class _Collection:
    """A mapping or list that is being read. ``key`` is the one whose value comes next."""

    name: str
    is_list: bool
    key: str | None = None

    def takes_key(self) -> bool:
        return not self.is_list and self.key is None

    def name_of_value(self) -> str:
        key, self.key = ("*" if self.is_list else self.key), None
        if key is None or len(key) > MAX_KEY_LENGTH:
            raise ValueError
        return f"{self.name}.{key}" if self.name else key


def read_version(body: bytes) -> tuple[int, ...] | None:
    """Return the three numbers of a version, or None.

    A gorush that was built without a version number reports words instead.
    """
    found = VERSION.match(str(_read_object(body).get("version")))
    return tuple(map(int, found.groups())) if found else None


def read_counters(body: bytes) -> dict[str, int] | None:
    """Return the counters, or None when there are none."""
    answer = _read_object(body)
    push_errors = {platform: _count(answer.get(platform)) for platform in NAMES.values()}
    return {platform: count for platform, count in push_errors.items() if count is not None} or None


def _count(platform: Any) -> int | None:
    count = platform.get("push_error") if isinstance(platform, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}
