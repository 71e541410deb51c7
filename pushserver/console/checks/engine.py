"""Engine of the config checks: it asks the peers, and saves the complaints about each as a notice in the status cache.

`/readyz` and the console read the notices. A module for each kind of peer reads the answers and has the rules.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import httpx
import structlog

from kit.display import host_of
from kit.http import ask, new_client, submit
from kit.processes.status import StatusCache
from pushserver.console.checks.peers import UNREACHABLE, Complaint, Peer

CHECK_EVERY_SECONDS = 300
# A notice outlives two missed checks, and expires when the checks have stopped.
TTL_SECONDS = 3 * CHECK_EVERY_SECONDS
# The timeout is short, because on a small machine the other periodic tasks wait for the checks.
TIMEOUT_SECONDS = 2.0

log = structlog.get_logger(__name__)


# Asking ---------------------------------------------------------------------------------------------------------------
R = TypeVar("R")


def read_all(read: Callable[[httpx.AsyncClient, str], Awaitable[R]], urls: Sequence[str]) -> list[R]:
    """Return the answers of each peer, read at the same time."""

    async def gather() -> list[R]:
        async with new_client() as client:
            return await asyncio.gather(*(read(client, url) for url in urls))

    return submit(gather()).result()


async def ask_peer(client: httpx.AsyncClient, url: str, method: str = "GET", **request: Any) -> httpx.Response | None:
    """Return the answer, or None when no server answers in time. An answer that breaks HTTP counts as a 502."""
    try:
        return await ask(client, method, url, seconds=TIMEOUT_SECONDS, **request)
    except httpx.RemoteProtocolError:
        return httpx.Response(502)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None


# Notices --------------------------------------------------------------------------------------------------------------
# The complaint by its id, or None if the peer does not have this fault.
Seen = Mapping[str, Complaint | None]
NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Notice:
    """The result of one config check of one peer. ``since`` has the time when each complaint was first seen, by id.

    ``memory`` has plain values for the next check, and ``facts`` words for the page of the peer.
    """

    url: str
    looked_at: datetime
    complaints: tuple[Complaint, ...]
    since: Mapping[str, datetime]
    memory: Mapping[str, Any] | None
    facts: Mapping[str, str] = field(default_factory=dict)


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
            one_is_up = any(is_up[url] for url in own)
            live: dict[str, Complaint | None] = {UNREACHABLE: None} if one_is_up else {}
            live |= {id_: found for url in own for id_, found in seen.get(url, NONE).items()}
            checked = complaints(known)
            since = {found.id: at for found, at in checked}
            found = [(one, since.get(one.id)) for one in live.values() if one]
            found += [(one, at) for one, at in checked if one.id not in live]
            yield Peer(host, one_is_up, len(known) == len(own), found)

    def note(
        self,
        url: str,
        complaints: Sequence[Complaint],
        *,
        known: Notice | None,
        now: datetime,
        memory: Mapping[str, Any] | None = None,
        facts: Mapping[str, str] = NONE,
    ) -> None:
        """Save the result of a check. Log each complaint only when it appears and when it disappears."""
        before = known.since if known else {}
        since = {complaint.id: before.get(complaint.id, now) for complaint in complaints}
        peer, came, went = {self.peer: host_of(url)}, f"{self.peer}_deviates", f"{self.peer}_deviates_no_more"
        for one in complaints:
            if one.id not in before:
                log.warning(came, **peer, complaint=one.id, problem=one.problem, todo=one.action)
        for complaint_id in before.keys() - since.keys():
            log.info(went, **peer, complaint=complaint_id)
        self.save(Notice(url, now, tuple(complaints), since, memory, facts))


def complaints(notices: Sequence[Notice]) -> list[tuple[Complaint, datetime | None]]:
    """Return the complaints of these notices, each with the time when it was first seen."""
    return [(found, notice.since.get(found.id)) for notice in notices for found in notice.complaints]
