"""The notice board: what the last look at each gorush found, in the cache, for `/readyz` and the console.

In the cache because it is about now: a notice nobody renews disappears, and after a restart the next look is soon.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.core.cache import cache
from redis.exceptions import RedisError

from notifications.gateways.gorush.watch.readings import Counters
from notifications.gateways.gorush.watch.rules import Deviation

KEY = "gorush_watch:1:{url}"  # the number grows when a notice changes its shape
LOOK_EVERY_SECONDS = 300
# Survives two looks that did not happen, but not the watch itself.
TTL_SECONDS = 3 * LOOK_EVERY_SECONDS


@dataclass(frozen=True, slots=True)
class Notice:
    """One look at one gorush: when, and what was wrong. ``since`` says by id when each deviation was first seen."""

    url: str
    looked_at: datetime
    deviations: tuple[Deviation, ...]
    since: dict[str, datetime]
    counters: Counters | None


def pin(notice: Notice) -> None:
    cache.set(KEY.format(url=notice.url), asdict(notice), TTL_SECONDS)


def read(urls: Sequence[str]) -> dict[str, Notice]:
    """By URL. A gorush that nobody looked at lately is missing; without the cache all are."""
    try:
        found = cache.get_many([KEY.format(url=url) for url in urls])
    except RedisError:
        return {}
    return {url: _notice(found[key]) for url in urls if (key := KEY.format(url=url)) in found}


def _notice(values: dict[str, Any]) -> Notice:
    return Notice(
        url=values["url"],
        looked_at=values["looked_at"],
        deviations=tuple(Deviation(**deviation) for deviation in values["deviations"]),
        since=values["since"],
        counters=Counters(**values["counters"]) if values["counters"] else None,
    )
