"""What the config checks of our peers (gorush, Waku nodes) found, kept in the cache for `/readyz` and the console.

The cache is the right place because a notice is about the present: one that nobody renews disappears, and the next
check comes soon after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

from kit.http.deviations import Deviation
from kit.http.urls import host_of

LOOK_EVERY_SECONDS = 300
# A notice survives two checks that did not take place, but not the end of the checks.
TTL_SECONDS = 3 * LOOK_EVERY_SECONDS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of one config check of one peer. ``since`` says by id when each deviation was first seen.

    ``memory`` holds plain values that the next check or a page wants to know.
    """

    url: str
    looked_at: datetime
    deviations: tuple[Deviation, ...]
    since: Mapping[str, datetime]
    memory: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Board:
    """The notices about one kind of peer. ``peer`` names it in keys and logs.

    ``version`` grows when a notice or its memory changes its shape.
    """

    peer: str
    version: int = 1

    def key(self, url: str) -> str:
        """Return the cache key of the notice about one peer."""
        return f"{self.peer}_watch:{self.version}:{url}"

    def pin(self, notice: Notice) -> None:
        """Keep a notice until the next one replaces it or it is out of date."""
        cache.set(self.key(notice.url), asdict(notice), TTL_SECONDS)

    def read(self, urls: Sequence[str]) -> dict[str, Notice]:
        """Return the notices by URL. A peer not checked lately is missing; without the cache all of them are."""
        try:
            found = cache.get_many([self.key(url) for url in urls])
        except RedisError:
            return {}
        return {url: _notice(found[key]) for url in urls if (key := self.key(url)) in found}

    def note(
        self,
        url: str,
        deviations: Sequence[Deviation],
        *,
        known: Notice | None,
        now: datetime,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what a check found. Log a deviation when it comes and when it goes, and not at every check."""
        before = known.since if known else {}
        since = {deviation.id: before.get(deviation.id, now) for deviation in deviations}
        self._log(host_of(url), deviations, before=before)
        self.pin(Notice(url, now, tuple(deviations), since, memory))

    def _log(self, host: str, deviations: Sequence[Deviation], *, before: Mapping[str, datetime]) -> None:
        peer = {self.peer: host}
        came = f"{self.peer}_deviates"
        went = f"{self.peer}_deviates_no_more"
        for deviation in deviations:
            if deviation.id not in before:
                log.warning(came, **peer, deviation=deviation.id, what=deviation.what, todo=deviation.action)
        for deviation_id in before.keys() - {deviation.id for deviation in deviations}:
            log.info(went, **peer, deviation=deviation_id)


def _notice(values: dict[str, Any]) -> Notice:
    deviations = tuple(Deviation(**deviation) for deviation in values["deviations"])
    return Notice(**{**values, "deviations": deviations})
