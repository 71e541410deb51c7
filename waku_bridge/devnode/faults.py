"""The faults a development node can be told to have, and how often each still strikes.

A switch is `true` (until it is set again), `false`, or the number of times it strikes, so that a test can ask for
exactly one lost reply. Delays are milliseconds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

ALWAYS = -1


class UnknownFaultError(ValueError):
    """A name that is no fault, or a value that no fault takes."""


@dataclass(slots=True)
class Faults:
    cut_after_drain: int = 0  # relay GET: the messages are gone, the connection breaks instead of an answer
    cut_after_publish: int = 0  # relay POST, lightpush: the message is out, the connection breaks
    no_peers: int = 0  # lightpush answers 505; relay POST answers OK, as nwaku does. Either way the message is lost
    archive_refuses: int = 0  # the message is delivered live but never stored
    store_no_peer: int = 0  # 412
    store_rate_limited: int = 0  # 429
    store_too_many_requests: int = 0  # 500 with TOO_MANY_REQUESTS, how a remote store's rate limit really arrives
    store_cursor_not_found: int = 0  # 500, on pages with a cursor only
    reply_delay_ms: int = 0  # every answer, after its work was done
    archive_delay_ms: int = 0  # a message is stored this much later, as by store-sync

    def strikes(self, name: str) -> bool:
        """Say whether this switch acts now, and count it."""
        left: int = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
        return left != 0

    def update(self, switches: Mapping[str, object]) -> None:
        """Set the named switches and leave the others. Raises UnknownFaultError before anything changed."""
        counts = {name: _count(name, value) for name, value in switches.items()}
        for name, count in counts.items():
            setattr(self, name, count)

    def as_dict(self) -> dict[str, int | bool]:
        return {name: True if count == ALWAYS else count for name, count in asdict(self).items()}


NAMES = frozenset(field.name for field in fields(Faults))


def _count(name: str, value: object) -> int:
    if name not in NAMES:
        raise UnknownFaultError(f"unknown fault: {name[:40]}")
    if isinstance(value, bool):
        if value and name.endswith("_ms"):
            raise UnknownFaultError(f"{name} takes milliseconds")
        return ALWAYS if value else 0
    if isinstance(value, int) and value >= 0:
        return value
    raise UnknownFaultError(f"{name} takes true, false or a number")
