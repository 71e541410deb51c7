"""Equal servers, of which one is enough: rules about them, complaints, and what is known of each. It does no I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

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


class Reading(Protocol):
    """What a peer says about itself, and what we need of it. A peer that is not reachable gave no answer at all."""

    @property
    def is_reachable(self) -> bool: ...


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Rule(Generic[R]):
    """A fault that a peer may have. ``find`` looks for it in a reading, and any true result is the fault.

    ``problem`` may contain the result as ``{found}``, beside ``{peer}``, the reading. The other texts are fixed. No
    text may contain words of the peer: its configuration holds secrets, and `/readyz` is public.
    """

    id: str
    find: Callable[[R], Any]
    problem: str
    why: str
    action: str

    def complaint(self, peer: R) -> Complaint | None:
        """Return the complaint about a peer with this fault."""
        found = self.find(peer)
        return Complaint(self.id, self.problem.format(found=found, peer=peer), self.why, self.action) if found else None


def complaints_of(rules: Sequence[Rule[R]], peer: R) -> list[Complaint]:
    """Return the complaints about a peer. One that does not answer has no other fault."""
    tried = [rule for rule in rules if peer.is_reachable is not (rule.id == UNREACHABLE)]
    return [complaint for rule in tried if (complaint := rule.complaint(peer))]
