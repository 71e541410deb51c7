"""What a watch of our peers (gorush, Waku nodes) found, on a board in the cache, for `/readyz` and the console.

In the cache because it is about now: a notice nobody renews disappears, and after a restart the next look is soon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

from notifications.deviations import Deviation
from registrations.console.columns import host_of

LOOK_EVERY_SECONDS = 300
# Survives two looks that did not happen, but not the watch itself.
TTL_SECONDS = 3 * LOOK_EVERY_SECONDS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """One look at one peer: when, and what was wrong. ``since`` says by id when each deviation was first seen.

    ``memory`` holds plain values that the next look or a page wants to know.
    """

    url: str
    looked_at: datetime
    deviations: tuple[Deviation, ...]
    since: Mapping[str, datetime]
    memory: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Board:
    """Notices of one kind of peer: ``peer`` names it in keys and logs. ``version`` grows when a notice or its memory
    changes its shape.
    """

    peer: str
    version: int = 1

    def key(self, url: str) -> str:
        return f"{self.peer}_watch:{self.version}:{url}"

    def pin(self, notice: Notice) -> None:
        cache.set(self.key(notice.url), asdict(notice), TTL_SECONDS)

    def read(self, urls: Sequence[str]) -> dict[str, Notice]:
        """By URL. A peer that nobody looked at lately is missing; without the cache all are."""
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
        """Pin what a look found; one line in the log when a deviation comes and one when it goes, not one per look."""
        before = known.since if known else {}
        since = {deviation.id: before.get(deviation.id, now) for deviation in deviations}
        self._log(host_of(url), deviations, before=before)
        self.pin(Notice(url, now, tuple(deviations), since, memory))

    def _log(self, host: str, deviations: Sequence[Deviation], *, before: Mapping[str, datetime]) -> None:
        peer, came = {self.peer: host}, f"{self.peer}_deviates"
        for deviation in deviations:
            if deviation.id not in before:
                log.warning(came, **peer, deviation=deviation.id, what=deviation.what, todo=deviation.action)
        went = f"{self.peer}_deviates_no_more"
        for deviation_id in before.keys() - {deviation.id for deviation in deviations}:
            log.info(went, **peer, deviation=deviation_id)


def _notice(values: dict[str, Any]) -> Notice:
    deviations = tuple(Deviation(**deviation) for deviation in values["deviations"])
    return Notice(**{**values, "deviations": deviations})
