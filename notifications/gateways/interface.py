"""What delivery asks of a gateway. A gateway is a client (I/O), a pure `build_request` and a pure `read_response`."""

from typing import Protocol

from notifications.messages import Push, Result


class Gateway(Protocol):
    name: str

    async def send(self, push: Push) -> Result:
        """Hand one push to Apple or Google and say what became of it. Never raises: every failure is a Result."""
        ...
