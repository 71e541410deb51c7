"""Faults that a development node can have, and how often each will still strike.

A switch is `true` (until it is set again), `false`, or the number of times it strikes, so that a test can set exactly
one lost reply. Numbers end in their unit: `_ms`, or `_messages`. A new fault is a line here, the place where it
strikes, and a test.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

ALWAYS = -1


class UnknownFaultError(ValueError):
    """A name that is no fault, or a value that no fault takes."""


@dataclass(slots=True)
class Faults:
    # Faults of the whole node
    go_waku: int = 0  # pages of relay and store are written as go-waku would write them
    starting: int = (
        0  # everything but health, info and version is 404, as while nwaku mounts its protocols (by its source)
    )
    reply_delay_ms: int = 0  # every answer, after its work was done
    clock_skew_ms: int = 0  # its clock is ahead of ours, or behind when negative: admission, Date and filled-in times
    # Relay
    ring_capacity_messages: int = 0  # replaces the capacity of the command line; a smaller ring evicts at once
    read_fails: int = 0  # relay GET answers 500 and drains nothing
    cut_after_drain: int = 0  # relay GET: the messages are gone, the connection breaks instead of an answer
    subscribe_fails: int = 0  # 500, and then only OK and empty pages until the topic is unsubscribed
    cut_after_publish: int = 0  # relay POST: the message is sent, and the connection breaks
    publish_fails: int = 0  # relay POST answers 500: the message is not sent
    no_peers: int = 0  # relay POST answers OK, and the message stays in this node. Health reports it all the while
    # Gossip with other development nodes. A partition is `gossip_lost` at both nodes
    gossip_lost: int = 0  # a message does not reach the peers, now or later
    gossip_delay_ms: int = 0  # a message reaches the peers this much later
    # Store
    archive_refuses: int = 0  # the message is delivered live but never stored
    archive_delay_ms: int = 0  # a message is stored this much later, as by store-sync
    store_no_peer: int = 0  # 412
    store_rate_limited: int = 0  # 429
    store_too_many_requests: int = 0  # 500 with TOO_MANY_REQUESTS, how a remote store's rate limit really arrives
    store_cursor_not_found: int = 0  # 500, on pages with a cursor only
    store_cursor_stuck: int = 0  # a page with a cursor repeats the page before
    store_cursor_circles: int = 0  # the last page has the cursor of the first
    store_page_empty: int = 0  # a page with a cursor is empty and has none
    store_duplicates: int = 0  # the page has its last message twice

    def strikes(self, name: str) -> bool:
        """Return whether this switch acts now, and count the strike."""
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
        return {
            name: True if count == ALWAYS and not name.endswith(NUMBERS) else count
            for name, count in asdict(self).items()
        }


NAMES = frozenset(field.name for field in fields(Faults))
NUMBERS = ("_ms", "_messages")
SIGNED = frozenset({"clock_skew_ms"})


def _count(name: str, value: object) -> int:
    if name not in NAMES:
        raise UnknownFaultError(f"unknown fault: {name[:40]}")
    if isinstance(value, bool):
        if value and name.endswith(NUMBERS):
            raise UnknownFaultError(f"{name} takes a number")
        return ALWAYS if value else 0
    if isinstance(value, int) and (value >= 0 or name in SIGNED):
        return value
    raise UnknownFaultError(f"{name} takes true, false or a number")
