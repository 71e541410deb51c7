"""The facts from which the lights are decided.

They are plain values, so that deciding needs neither a server nor a clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from notifications.standstill import Switch

# Attempts by channel, outcome and code.
ChannelTries = Mapping[tuple[str, str, str], int]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong with a peer, and what to do about it."""

    what: str
    action: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A Waku node on its live path, or a gorush. ``is_watched`` tells that its configuration was checked lately."""

    host: str
    is_up: bool
    is_watched: bool = True
    troubles: Sequence[Trouble] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a Waku node.

    ``read_up_to`` is the time up to which it was read, on the shard that is furthest behind, or None when it never was.
    ``gaps`` are stretches of the past that are still to be searched. ``troubles`` are those of a node that is asked for
    its store only.
    """

    host: str
    read_up_to: datetime | None
    gaps: int = 0
    troubles: Sequence[Trouble] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of Celery.

    ``is_needed`` tells that messages or their answers are not processed without a worker for it.
    """

    name: str
    has_worker: bool
    is_needed: bool = True


# The gauges of `/metrics` count waiting rows up to this number.
MOST_WAITING = 100_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many rows wait, and how many seconds ago the oldest of them could have been processed."""

    count: int = 0
    oldest_seconds: float = 0.0

    @property
    def number(self) -> str:
        """Return the number as text; counting stops at `MOST_WAITING`."""
        return f"{self.count:,}{' or more' if self.count >= MOST_WAITING else ''}"


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The last round trip of a canary. ``words`` tell which link is broken, if one is. In a dry run gorush was told to
    drop the push.
    """

    finished_at: datetime
    is_broken: bool
    words: str
    total_ms: int
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Xmpp:
    """How many apps devices may register in, and how many pushes came through XMPP in the last hour."""

    apps: int
    pushes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Envelopes that failed by faults of ours and wait: how many there are, and of these from the last hour, counted up
    to a limit; and the fault that was seen last, with how often it was.
    """

    count: int = 0
    lately: int = 0
    fault: str = ""
    times: int = 0


@dataclass(frozen=True, slots=True)
class Reports:
    """The state of the nightly reports, with the anomalies and findings of the newest night."""

    is_off: bool
    is_missing: bool
    words: str
    anomalies: Sequence[str] = ()
    findings: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of one moment. ``reasons`` are those of `/readyz`: why a message would not make it through, by check.

    ``tries`` counts the attempts of the last minutes by channel, outcome and code, ``newest_tries`` those of the newest
    of them, ``replies`` the replies of the last hour, and
    ``lost_replies`` those of them that no node took or that no answering store had. ``counted_until`` is when beat last
    counted. ``switches`` are the drain and the channels; ``deaths_doubted`` has the channels whose dead tokens are not
    believed, with since when. Where ``is_database_slow``, nothing is known about what waits.
    ``xmpp`` is None where no component is configured. ``unreached_since`` tells since when no push reaches gorush, if
    that is so, and ``before`` has the levels of the lights that were not green a moment ago.
    """

    now: datetime
    reasons: Mapping[str, str] = field(default_factory=dict)
    queues: Sequence[Queue] = ()
    counted_until: datetime | None = None
    nodes: Sequence[Peer] = ()
    stores: Sequence[Store] = ()
    inbox: Waiting = Waiting()
    dead_letters: int = 0
    failed: Failed = Failed()
    time_to_live: timedelta = timedelta(days=1)
    due: Waiting = Waiting()
    gorush: Sequence[Peer] = ()
    tries: ChannelTries = field(default_factory=dict)
    newest_tries: ChannelTries = field(default_factory=dict)
    unknown_errors: int = 0
    switches: Sequence[Switch] = ()
    deaths_doubted: Mapping[str, datetime] = field(default_factory=dict)
    outbox: Waiting = Waiting()
    overdue_seconds: float = 0.0
    replies: int = 0
    lost_replies: int = 0
    is_canary_expected: bool = False
    canary: RoundTrip | None = None
    is_xmpp_canary_expected: bool = False
    xmpp_canary: RoundTrip | None = None
    reports: Reports = Reports(is_off=True, is_missing=False, words="")
    is_database_slow: bool = False
    xmpp: Xmpp | None = None
    unreached_since: datetime | None = None
    before: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_redis_away(self) -> bool:
        """Return whether Redis is away, which holds heartbeats, notices and the canary's last trip."""
        return bool(self.reasons.get("broker"))
