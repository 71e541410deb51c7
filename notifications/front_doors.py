"""Front doors, which take requests from senders and return answers to them.

Delivery knows none of them. Each registers itself under the name that its requests are stored with, and is opened once
in every process that makes turns. It does its work in stages: those that take requests run before delivery in a turn,
and those that send answers run after it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from kit.turns import Bell, Stage
from notifications.delivery.desk import Delivery


class FrontDoor(Protocol):
    """One way into the server, opened in one process."""

    def intake(self) -> Sequence[Stage]:
        """Return the stages that take requests; they call `acceptance.accept`, and hand on its answers."""
        ...

    def outlet(self) -> Sequence[Stage]:
        """Return the stages that send answers: those handed on under the name of this front door."""
        ...


Open = Callable[[Delivery, Bell], FrontDoor]
_registered: dict[str, Open] = {}


def register(name: str, open_it: Open) -> None:
    """Make a front door known. ``name`` is stored with its requests."""
    _registered[name] = open_it


def open_all(delivery: Delivery, bell: Bell) -> dict[str, FrontDoor]:
    """Open every registered front door for this process, and return them by name."""
    return {name: open_it(delivery, bell) for name, open_it in _registered.items()}
