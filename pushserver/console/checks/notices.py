"""Notices: the results of config checks of peers, in the status cache for `/readyz` and the console."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from kit.display import host_of
from kit.processes.status import StatusCache
from pushserver.console.checks.peers import UNREACHABLE, Complaint, Peer

CHECK_EVERY_SECONDS = 300
# A notice outlives two missed checks, and expires when the checks have stopped.
TTL_SECONDS = 3 * CHECK_EVERY_SECONDS

log = structlog.get_logger(__name__)
# The complaint by its id, or None if the peer does not have this fault.
Seen = Mapping[str, Complaint | None]
NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of one config check of one peer. ``since`` has the time when each complaint was first seen, by id.

    ``memory`` has plain values for the next check and for the page of the peer.
    """

    url: str
    looked_at: datetime
    complaints: tuple[Complaint, ...]
    since: Mapping[str, datetime]
    memory: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class NoticeCache:
    """The notices about one kind of peer. ``peer`` is the name of the kind in keys and logs."""

    peer: str

    @property
    def cache(self) -> StatusCache[Notice]:
        return StatusCache(f"{self.peer}_notice", Notice, TTL_SECONDS)

    def save(self, notice: Notice) -> None:
        """Save a notice until the next one replaces it, or until it expires."""
        self.cache.save(notice, notice.url)

    def read(self, urls: Sequence[str]) -> dict[str, Notice]:
        """Return the notices by URL, without peers that were not checked recently. Without the cache, return none."""
        return self.cache.read_all(urls)

    def peers(self, is_up: Mapping[str, bool], *, is_blind: bool, seen: Mapping[str, Seen] = NONE) -> Iterator[Peer]:
        """Yield the peers by host. URLs that differ only in their path have the same host, and are one peer.

        ``seen`` has complaints by URL and id that processes found while they used a peer. These are newer than the last
        check, and replace its complaints with the same id. A peer that is up has answered since a check that could not
        reach it.
        """
        notices = {} if is_blind else self.read(list(is_up))
        for host in dict.fromkeys(map(host_of, is_up)):
            own = [url for url in is_up if host_of(url) == host]
            known = [notices[url] for url in own if url in notices]
            live: dict[str, Complaint | None] = {UNREACHABLE: None} if any(is_up[url] for url in own) else {}
            live |= {id_: found for url in own for id_, found in seen.get(url, NONE).items()}
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
        """Save the result of a check. Log each complaint only when it appears and when it disappears."""
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
    """Return the complaints of a check, with the newer ones of ``live`` in place of those with the same id."""
    since = {found.id: at for found, at in checked}
    others = [(found, at) for found, at in checked if found.id not in live]
    return [*((found, since.get(id_)) for id_, found in live.items() if found), *others]


def complaints(notices: Sequence[Notice]) -> list[tuple[Complaint, datetime | None]]:
    """Return the complaints of these notices, each with the time when it was first seen."""
    return [(found, notice.since.get(found.id)) for notice in notices for found in notice.complaints]
