"""Complaints: the results of a config check of a peer. The rules that make them import nothing else, and do no I/O."""

from dataclasses import dataclass

# The id of the complaint about a peer that did not answer the check. A later answer of that peer withdraws it.
UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Complaint:
    """A fault in the configuration of a peer, in words for an operator. ``id`` is stable and documented."""

    id: str
    problem: str
    why: str
    action: str
