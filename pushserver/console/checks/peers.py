"""Equal servers, of which one is enough: complaints about them, and their health indicators. It does no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pushserver.console.health.indicators import Indicator, Kind, State

# The id of the complaint about a peer that did not answer the check. A later answer of that peer withdraws it.
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Complaint:
    """A fault in the configuration of a peer, in words for an operator. ``id`` is stable and documented."""

    id: str
    problem: str
    why: str
    action: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer. ``is_watched`` says that its configuration was checked recently. Each complaint has the time when it was
    first found.
    """

    host: str
    is_up: bool = True
    is_watched: bool = True
    complaints: Sequence[tuple[Complaint, datetime | None]] = ()


@dataclass(frozen=True, slots=True)
class PeerKind:
    """The sentences about a kind of peer. ``first_step`` is for a peer that is down."""

    kind: Kind
    up: str
    down: str
    first_step: str


def judge(peer: Peer, peers: Sequence[Peer], about: PeerKind) -> Indicator:
    """Judge one peer. A peer that is down is red only if no other one is up, because each can do the work of all."""
    if not peer.is_up:
        state = State.YELLOW if any(other.is_up for other in peers) else State.RED
        return Indicator(about.kind, state, about.down, about.first_step, subject=peer.host)
    if peer.complaints or not peer.is_watched:
        return deviating(about.kind, peer, about.up)
    return Indicator(about.kind, State.GREEN, about.up, subject=peer.host)


def deviating(kind: Kind, peer: Peer, up: str) -> Indicator:
    """Return the indicator of a peer whose configuration deviates, or was not checked recently."""
    if not peer.complaints:
        sentence = f"{up}; its configuration was not checked lately"
        first_step = "Is there a worker for the queue `maintenance`, and beat?"
        return Indicator(kind, State.YELLOW, sentence, first_step, subject=peer.host)
    (first, since), *others = peer.complaints
    sentence = f"{first.problem} (and {len(others)} more)" if others else first.problem
    return Indicator(kind, State.YELLOW, sentence, first.action, since, peer.host)
