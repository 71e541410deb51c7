"""Complaints: the results of a config check of a peer. The rules that make them import nothing else, and do no I/O."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complaint:
    """A fault in the configuration of a peer, in words for an operator. ``id`` is stable and documented."""

    id: str
    problem: str
    why: str
    action: str
