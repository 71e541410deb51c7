"""The reader of a page: the path and the node that its messages came by. Pure."""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Reader:
    """One path from one node. ``path`` is live, store or backfill, and ``node`` is a URL."""

    path: str
    node: str
    pubsub_topic: str

    @cached_property
    def name(self) -> str:
        """Return host and port of the node, for logs and metrics: a URL may hold a password."""
        return urlsplit(self.node).netloc.rpartition("@")[2]
