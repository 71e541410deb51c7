"""Gateways, which pass pushes on to Apple, Google or a device. docs/extending.md says how to add one.

Delivery imports no gateway, and a gateway imports nothing of delivery. Each gateway is a folder with a Django app of
its own, which registers it under the name that its routes are stored with. Each process opens it once.

A gateway is a client (I/O) around two pure functions, which build the request and read the response.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from kit.processes import once
from kit.processes.status import StatusCache
from notifications.messages import Outcome, Push, Result


class Gateway(Protocol):
    """A gateway, which takes the pushes of the routes that are stored with the name of its registration."""

    def refresh(self, *, now: datetime) -> None:
        """Read from the database what sending needs, and write there what sending found.

        It is called before and after each batch, outside any transaction, by a thread that may wait, because `send` may
        not. It must not raise.
        """
        ...

    def find_fault(self, push: Push, /) -> Result | None:
        """Return the result of a push that must not even be sent, or None when it may be sent. The function is pure."""
        ...

    async def send(self, push: Push, /) -> Result:
        """Send one push and return its result. It never raises: every failure is a Result."""
        ...


# The process that last could not reach a gateway while others could, by the gateway. It tries every few seconds.
CUT_OFF = StatusCache("cut_off", str, ttl_seconds=9)
NO_GATEWAY = Result(Outcome.CONFIG, "no_gateway", is_untried=True)
_openers: dict[str, Callable[[], Gateway]] = {}


def register(name: str, open_gateway: Callable[[], Gateway]) -> None:
    """Register a gateway. ``open_gateway`` is called once in a process."""
    _openers[name] = once(open_gateway)


def names() -> list[str]:
    """Return the gateway names that a route may have."""
    return sorted(_openers)


def open_all() -> None:
    """Open every gateway.

    A process that sends does so at its start, with the same code as everything else that it runs: the next release may
    replace the files before its first push.
    """
    for open_gateway in _openers.values():
        open_gateway()


def gateway_for(name: str) -> Gateway:
    """Return the gateway of a route. For an unknown name, return a gateway that takes no pushes."""
    return _openers.get(name, AbsentGateway)()


class AbsentGateway:
    """A stand-in for a gateway that was removed from this server. Its routes wait until it is back."""

    def refresh(self, *, now: datetime) -> None:
        """Do nothing, because there is nothing to read."""

    def find_fault(self, _push: Push) -> Result | None:
        return NO_GATEWAY

    async def send(self, _push: Push) -> Result:
        return NO_GATEWAY
