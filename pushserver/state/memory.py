"""Remember since when a light is not green, where nothing else tells. Both beat and the dashboard remember it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from django.core.cache import cache
from redis.exceptions import RedisError

from pushserver.state.lights import Light

KEY = "dashboard:since:1"
TTL_SECONDS = 30 * 86_400
Memory = dict[str, tuple[str, datetime]]


def remember(lights: Sequence[Light], *, now: datetime) -> list[Light]:
    """Return the lights with the time at which they took their colour. Without Redis they are returned unchanged."""
    with suppress(RedisError):
        before: Memory = cache.get(KEY, {})
        memory = {light.id: _since(light, before, now) for light in lights if light.finding.is_bad}
        if memory != before:
            cache.set(KEY, memory, TTL_SECONDS)
        return [_dated(light, memory) for light in lights]
    return list(lights)


def _since(light: Light, before: Memory, now: datetime) -> tuple[str, datetime]:
    level, since = before.get(light.id, ("", now))
    return (light.finding.level.value, since if level == light.finding.level else now)


def _dated(light: Light, memory: Memory) -> Light:
    if light.finding.since or light.id not in memory:
        return light
    return replace(light, finding=replace(light.finding, since=memory[light.id][1]))
