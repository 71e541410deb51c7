"""Spool of messages in a file, as memory should not hold all of them until they are sent."""

import pickle
from pathlib import Path

from waku_bridge.messages import WakuMessage

Named = tuple[str, WakuMessage]


class Spool:
    """File of messages, each with the name of its kind. All are put before the first is taken."""

    def __init__(self, path: Path) -> None:
        self._writer = path.open("wb")
        self._reader = path.open("rb")

    def put(self, kind: str, message: WakuMessage) -> None:
        """Add a message."""
        pickle.dump((kind, message), self._writer)

    def next(self) -> Named:
        """Take the next message."""
        self._writer.flush()
        named: Named = pickle.load(self._reader)  # noqa: S301 - our own file
        return named
