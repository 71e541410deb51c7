"""What a watch of our peers concludes. Pure, so that the rules that conclude it can be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """What is wrong with a peer, in words for an operator. ``id`` is stable, and a row in the documentation."""

    id: str
    what: str
    why: str
    action: str
