"""What the config checks of our peers found, in the status cache for `/readyz` and the console."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from kit.health.complaints import Complaint
from kit.health.peers import Peer
from kit.health.status_cache import StatusCache
from kit.http.urls import host_of

CHECK_EVERY_SECONDS = 300
# A notice survives two checks that did not take place, but not the end of the checks.
TTL_SECONDS = 3 * CHECK_EVERY_SECONDS

log = structlog.get_logger(__name__)
# By the id of a complaint: it, or None for a peer that is as it should be.
Seen = Mapping[str, Complaint | None]
NONE: Mapping[str, Any] = {}


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
class NoticeCache:
    """The notices about one kind of peer. ``peer`` names it in keys and logs."""

    peer: str

    @property
    def cache(self) -> StatusCache[Notice]:
        return StatusCache(f"{self.peer}_notice", Notice, TTL_SECONDS)

    def save(self, notice: Notice) -> None:
        """Keep a notice until the next one replaces it or it is out of date."""
        self.cache.save(notice, notice.url)

    def read(self, urls: Sequence[str]) -> dict[str, Notice]:
        """Return the notices by URL. A peer not checked lately is missing; without the cache all of them are."""
        return self.cache.read_all(urls)

    def peers(self, is_up: Mapping[str, bool], *, is_blind: bool, seen: Mapping[str, Seen] = NONE) -> Iterator[Peer]:
        """Yield the peers by host. URLs that differ only in their path share a host and are shown as one.

        ``seen`` is what whoever uses a peer sees of it all the time, by URL and id of the complaint: it is newer than
        what the last check found.
        """
        notices = {} if is_blind else self.read(list(is_up))
        for host in dict.fromkeys(map(host_of, is_up)):
            own = [url for url in is_up if host_of(url) == host]
            known = [notices[url] for url in own if url in notices]
            live = {id_: found for url in own for id_, found in seen.get(url, NONE).items()}
            found = _newest(complaints(known), live)
            yield Peer(host, any(is_up[url] for url in own), len(known) == len(own), found)

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
        self.save(Notice(url, now, tuple(complaints), since, memory))

    def _log(self, host: str, complaints: Sequence[Complaint], *, before: Mapping[str, datetime]) -> None:
        peer = {self.peer: host}
        came = f"{self.peer}_deviates"
        went = f"{self.peer}_deviates_no_more"
        for complaint in complaints:
            if complaint.id not in before:
                log.warning(came, **peer, complaint=complaint.id, problem=complaint.problem, todo=complaint.action)
        for complaint_id in before.keys() - {complaint.id for complaint in complaints}:
            log.info(went, **peer, complaint=complaint_id)


def _newest(
    checked: Sequence[tuple[Complaint, datetime | None]], live: Seen
) -> list[tuple[Complaint, datetime | None]]:
    """Return what a check found, but for what is known from now."""
    since = {found.id: at for found, at in checked}
    others = [(found, at) for found, at in checked if found.id not in live]
    return [*((found, since.get(id_)) for id_, found in live.items() if found), *others]


def complaints(notices: Sequence[Notice]) -> list[tuple[Complaint, datetime | None]]:
    """Return what the config checks found, with since when."""
    return [(found, notice.since.get(found.id)) for notice in notices for found in notice.complaints]
