"""Status cache: facts about the present that one process saves and others read, as JSON in the cache of all processes.

The cache is the right place because `/readyz` and the console must know these facts while the database hangs. A fact
that nobody renews is out of date and disappears. No reader and no writer fails while the cache is away.
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

from kit.health.change_filter import ChangeFilter

log = structlog.get_logger(__name__)
T = TypeVar("T")
_change_filter = ChangeFilter()  # why facts of this process are not saved


class JsonSerializer:
    """How Django's cache writes values: as JSON, so that whoever can write to Redis cannot have code executed. What is
    no JSON counts as not there.
    """

    def dumps(self, value: object) -> bytes:
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
        return None


@dataclass(frozen=True, slots=True)
class StatusCache(Generic[T]):
    """The facts of one kind: ``kind`` is their type, ``topic`` begins their keys. There may be one for each ``name``.

    A type is a dataclass, a plain value, or a list of such; a field that JSON does not know is a date or an enum.
    """

    topic: str
    kind: type[T]
    ttl_seconds: float

    def key(self, name: str = "") -> str:
        """Return the key of one fact."""
        return f"status:{self.topic}:{name}"

    def save(self, value: T, name: str = "") -> None:
        """Save a fact until it is replaced or out of date."""
        try:
            cache.set(self.key(name), orjson.loads(orjson.dumps(value)), self.ttl_seconds)
        except RedisError as error:
            if _change_filter.has_changed(type(error).__name__):
                log.warning("status_not_saved", topic=self.topic, error=type(error).__name__)
        else:
            _change_filter.has_changed("")

    def read(self, name: str = "") -> T | None:
        """Return a fact, or None when it was not saved lately or the cache is away."""
        return self.read_all([name]).get(name)

    def read_all(self, names: Collection[str]) -> dict[str, T]:
        """Return the facts by name. One that was not saved lately is missing; while the cache is away all of them are.

        What another version of the server saved in another shape counts as not saved.
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
    """Return what JSON holds as a value of this type.

    Raises TypeError, ValueError or others for what is none.
    """
    arguments, origin = get_args(kind), get_origin(kind)
    if is_dataclass(kind):
        return kind(**{name: _typed(hint, value[name]) for name, hint in get_type_hints(kind).items()})  # type: ignore[operator]
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
