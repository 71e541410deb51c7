"""The state of a process: facts about the present that other processes read, and a log filter for lasting conditions.

Facts are saved as JSON in Django's cache (Redis), because `/readyz` and the console need them while the database hangs.
A fact that is not renewed expires. Neither readers nor writers fail while Redis is away.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime
from enum import EnumType
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import orjson
import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)
T = TypeVar("T")


class ChangeFilter:
    """Remembers the last report of a condition, so that callers report it once, and again when it changes."""

    def __init__(self) -> None:
        self._last = ""

    def has_changed(self, words: str) -> bool:
        """Return whether ``words`` differ from the last report, and remember them. Empty words mean no fault."""
        last, self._last = self._last, words
        return words != last


_change_filter = ChangeFilter()  # of the errors that keep this process from saving facts


class JsonSerializer:
    """The serializer of Django's cache. Unlike pickle, JSON cannot execute code for a person with access to Redis.

    A value that is not JSON counts as missing.
    """

    def dumps(self, value: object) -> bytes:
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
        return None


@dataclass(frozen=True, slots=True)
class StatusCache(Generic[T]):
    """The facts of one kind. ``kind`` is their type, and ``topic`` the prefix of their keys. Each fact has a ``name``.

    A type is a plain value, a date, an enum, a dataclass of these types, or a tuple or mapping of them.
    """

    topic: str
    kind: type[T]
    ttl_seconds: float

    def key(self, name: str = "") -> str:
        return f"status:{self.topic}:{name}"

    def save(self, value: T, name: str = "") -> None:
        """Save a fact, which expires after ``ttl_seconds``."""
        try:
            cache.set(self.key(name), orjson.loads(orjson.dumps(value)), self.ttl_seconds)
        except RedisError as error:
            if _change_filter.has_changed(type(error).__name__):
                log.warning("status_not_saved", topic=self.topic, error=type(error).__name__)
        else:
            _change_filter.has_changed("")

    def read(self, name: str = "") -> T | None:
        """Return a fact, or None if it is missing or expired, or if the cache is away."""
        return self.read_all([name]).get(name)

    def read_all(self, names: Collection[str]) -> dict[str, T]:
        """Return the facts by name, without those that are missing or expired. While the cache is away, return none.

        A fact of another shape, saved by another version of the server, counts as missing. A field that this version
        added has its default.
        """
        try:
            found = cache.get_many([self.key(name) for name in names])
        except RedisError:
            return {}
        facts = {name: self._fact(found.get(self.key(name))) for name in names}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def _fact(self, value: Any) -> T | None:
        try:
            return None if value is None else cast("T", _typed(self.kind, value))
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _typed(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type ``kind``.

    Raises AttributeError, KeyError, TypeError or ValueError for a value of another shape.
    """
    arguments, origin = get_args(kind), get_origin(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _typed(hints[name], value[name]) for name in hints.keys() & value.keys()})  # type: ignore[operator]
    if kind in (datetime, date):
        return kind.fromisoformat(value)
    if NoneType in arguments:
        return None if value is None else _typed(arguments[0], value)
    if origin is tuple:
        return tuple(_typed(arguments[0], each) for each in value)
    if origin in (Mapping, dict):
        return {name: _typed(arguments[1], each) for name, each in value.items()}
    return kind(value) if isinstance(kind, EnumType) else _checked(origin or kind, value)


def _checked(kind: Any, value: Any) -> Any:
    wanted = (int, float) if kind is float else kind
    if wanted is not Any and isinstance(wanted, type | tuple) and not isinstance(value, wanted):
        raise TypeError
    return value
