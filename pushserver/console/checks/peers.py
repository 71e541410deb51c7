"""Equal servers, of which one is enough: complaints about them, and what is known of each. It does no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
