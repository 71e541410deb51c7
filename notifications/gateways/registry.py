"""Which gateway takes what is sent to a route. Each registers itself under its name, and is opened once per process."""

from collections.abc import Callable
from datetime import datetime
from functools import cache

from kit.processes.once import once
from notifications.gateways.interface import Gateway
from notifications.messages import Outcome, Push, Result

NO_GATEWAY = Result(Outcome.CONFIG, "no_gateway", is_untried=True)
_openers: dict[str, Callable[[], Gateway]] = {}


def register(name: str, open_gateway: Callable[[], Gateway]) -> None:
    """Make a gateway known. ``open_gateway`` is called once in a process."""
    _openers[name] = once(open_gateway)
    gateway_for.cache_clear()


def names() -> list[str]:
    """Return the names that a route may have."""
    return sorted(_openers)


def open_all() -> None:
    """Open every gateway. A process that sends does so at its start, with the code of all else that it runs: the next
    release may replace the files before its first push.
    """
    for name in names():
        gateway_for(name)


@cache  # it is asked twice for each push
def gateway_for(name: str) -> Gateway:
    """Return the gateway of a route. If there is no such gateway any more, return one that takes nothing."""
    return _openers[name]() if name in _openers else AbsentGateway(name)


class AbsentGateway:
    """Stands for a gateway that was taken out of this server. Its routes wait until it is there again."""

    def __init__(self, name: str) -> None:
        self.name = name

    def refresh(self, *, now: datetime) -> None:
        """Do nothing, because there is nothing to know."""

    def find_fault(self, _push: Push) -> Result | None:
        return NO_GATEWAY

    async def send(self, _push: Push) -> Result:
        return NO_GATEWAY
