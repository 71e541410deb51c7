"""What every client core has in common: a key under which it is answered, and a way to take answers in."""

from typing import Protocol, TypeVar

from waku_bridge.codec.keys import Identity
from waku_bridge.messages import Decoded

Event_co = TypeVar("Event_co", covariant=True)


class Listener(Protocol[Event_co]):
    @property
    def receiver(self) -> Identity:
        """Answers are sealed for this key, and published on its partitioned topic."""
        ...

    def receive(self, message: Decoded) -> Event_co | None:
        """What a message means to this client; None when it is not an answer to anything it asked.

        Anybody may write to the topic, so what a message says counts only from the server that was asked.
        """
        ...
