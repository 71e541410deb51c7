"""What delivery asks of a gateway: a client (I/O), a pure `build_request` and a pure `read_response` together."""

from datetime import datetime
from typing import Protocol

from notifications.messages import Push, Result


class Gateway(Protocol):
    """What takes pushes for the routes that are stored with its ``name``."""

    name: str

    def refresh(self, *, now: datetime) -> None:
        """Read from the database what sending needs, and write there what it taught.

        It is called before and after each batch, outside any transaction, by a thread that may wait, because `send` may
        not. It must not raise.
        """
        ...

    def find_fault(self, push: Push, /) -> Result | None:
        """Return what is wrong with a push that must not even be sent, as its result, or None when it may be sent.
        Pure.
        """
        ...

    async def send(self, push: Push, /) -> Result:
        """Hand one push on and return what became of it. It never raises: every failure is a Result."""
        ...
