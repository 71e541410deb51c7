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

from kit.http.complaints import Complaint
from kit.http.urls import host_of

LOOK_EVERY_SECONDS = 300
# A notice survives two checks that did not take place, but not the end of the checks.
TTL_SECONDS = 3 * LOOK_EVERY_SECONDS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of one config check of one peer. ``since`` says by id when each complaint was first seen.

    ``memory`` holds plain values that the next check or a page wants to know.
    """

    url: str
    looked_at: datetime
    complaints: tuple[Complaint, ...]
    since: Mapping[str, datetime]
    memory: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Board:
    """The notices about one kind of peer. ``peer`` names it in keys and logs.

    ``version`` grows when a notice or its memory changes its shape.
    """

    peer: str
    version: int = 2

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
        complaints: Sequence[Complaint],
        *,
        known: Notice | None,
        now: datetime,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep what a check found. Log a complaint when it comes and when it goes, and not at every check."""
        before = known.since if known else {}
        since = {complaint.id: before.get(complaint.id, now) for complaint in complaints}
        self._log(host_of(url), complaints, before=before)
        self.pin(Notice(url, now, tuple(complaints), since, memory))

    def _log(self, host: str, complaints: Sequence[Complaint], *, before: Mapping[str, datetime]) -> None:
        peer = {self.peer: host}
        came = f"{self.peer}_deviates"
        went = f"{self.peer}_deviates_no_more"
        for complaint in complaints:
            if complaint.id not in before:
                log.warning(came, **peer, complaint=complaint.id, what=complaint.what, todo=complaint.action)
        for complaint_id in before.keys() - {complaint.id for complaint in complaints}:
            log.info(went, **peer, complaint=complaint_id)


def _notice(values: dict[str, Any]) -> Notice:
    complaints = tuple(Complaint(**complaint) for complaint in values["complaints"])
    return Notice(**{**values, "complaints": complaints})
