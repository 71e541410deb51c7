"""The interface of a gateway: a client (I/O) around a pure `build_request` and a pure `read_response`."""

from datetime import datetime
from typing import Protocol

from notifications.messages import Push, Result


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
