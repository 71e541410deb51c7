"""Bridges, which take requests from senders and return answers to them.

Delivery imports none of them. Each bridge registers itself under the name that its requests are stored with. Every
process that processes batches opens it once. A bridge works in steps: those that take requests run before delivery in a
batch, and those that send answers run after it.
"""

from collections.abc import Callable, Sequence
from typing import LiteralString, Protocol

from kit.batches.batch import Step, Wakeup
from notifications.delivery.steps import Delivery


class Bridge(Protocol):
    """One way into the server, opened in one process."""

    def intake(self) -> Sequence[Step]:
        """Return the steps that take requests. They call `acceptance.accept` and pass on its answers.

        After the commit they call `Delivery.accepted` and then `own_buckets().keep`, after a rollback `take_back`.
        """
        ...

    def outlet(self) -> Sequence[Step]:
        """Return the steps that send the answers passed on under the name of this bridge."""
        ...


Open = Callable[[Delivery, Wakeup], Bridge]
_registered: dict[str, Open] = {}
# Queries for the pseudonyms and the installation ids of the canaries' registrations, which reports leave out.
CANARY_PSEUDONYMS: list[LiteralString] = []
CANARY_INSTALLATIONS: list[LiteralString] = []


def register(name: str, open_it: Open) -> None:
    """Register a bridge. ``name`` is stored with its requests."""
    _registered[name] = open_it


def open_all(delivery: Delivery, wakeup: Wakeup) -> list[Bridge]:
    """Open every registered bridge for this process."""
    return [open_it(delivery, wakeup) for open_it in _registered.values()]
