"""What the lights are decided from. Plain values, so that deciding needs neither a server nor a clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong with a peer, and what to do about it."""

    what: str
    action: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A Waku node on its live path, or a gorush. ``is_watched``: its configuration was looked at lately."""

    host: str
    is_up: bool
    is_watched: bool = True
    troubles: Sequence[Trouble] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Up to when it was read, on the shard that is furthest behind; None when it never was. ``gaps`` are stretches of
    the past that are still to be searched. ``troubles`` are those of a node that is asked for its store only.
    """

    host: str
    read_up_to: datetime | None
    gaps: int = 0
    troubles: Sequence[Trouble] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """``is_needed``: without a worker on it, messages or their answers stay where they are."""

    name: str
    has_worker: bool
    is_needed: bool = True


# What waits is counted so far by the gauges of `/metrics`.
MOST_WAITING = 100_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """``oldest_seconds`` is how long the oldest has waited beyond the moment that something could be done about it."""

    count: int = 0
    oldest_seconds: float = 0.0

    @property
    def number(self) -> str:
        return f"{self.count:,}{' or more' if self.count >= MOST_WAITING else ''}"


@dataclass(frozen=True, slots=True)
class Halted:
    """A channel that sends nothing. ``is_proven``: something was delivered to it once."""

    name: str
    is_tripped: bool
    is_proven: bool
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Drain:
    by: str
    why: str
    since: datetime


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The canary's last one. ``words`` say what is broken, if anything is."""

    finished_at: datetime
    is_broken: bool
    words: str
    total_ms: int


@dataclass(frozen=True, slots=True)
class Reports:
    """``anomalies`` and ``findings`` of the newest night, in words with their numbers."""

    is_off: bool
    is_missing: bool
    words: str
    anomalies: Sequence[str] = ()
    findings: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All of one moment. ``reasons`` are those of `/readyz`: why a message would not make it through, by check.

    ``tries`` counts what gorush answered in the last minutes, by outcome and code; ``replies`` those of the last hour,
    and ``lost_replies`` how many of these no node took, or no store had that answered. ``counted_until`` is when beat
    last counted. Where ``is_database_slow``, nothing is known about what waits.
    """

    now: datetime
    reasons: Mapping[str, str] = field(default_factory=dict)
    queues: Sequence[Queue] = ()
    counted_until: datetime | None = None
    nodes: Sequence[Peer] = ()
    stores: Sequence[Store] = ()
    inbox: Waiting = Waiting()
    dead_letters: int = 0
    drain: Drain | None = None
    time_to_live: timedelta = timedelta(days=1)
    due: Waiting = Waiting()
    gorush: Sequence[Peer] = ()
    tries: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unknown_errors: int = 0
    running_channels: int = 0
    halted: Sequence[Halted] = ()
    outbox: Waiting = Waiting()
    overdue_seconds: float = 0.0
    replies: int = 0
    lost_replies: int = 0
    is_canary_expected: bool = False
    canary: RoundTrip | None = None
    reports: Reports = Reports(is_off=True, is_missing=False, words="")
    is_database_slow: bool = False

    @property
    def is_redis_away(self) -> bool:
        """Heartbeats, notices and the canary's last trip are there."""
        return bool(self.reasons.get("broker"))
