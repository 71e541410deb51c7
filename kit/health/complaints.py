"""What a config check of our peers concludes. It stands alone so that the rules that conclude it can be pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a peer, in words for an operator.

    ``id`` is stable and has a row in the documentation.
    """

    id: str
    problem: str
    why: str
    action: str
