"""The reader of a page: the path and the node that its messages came by. Pure."""

from dataclasses import dataclass
from functools import cached_property

from kit.http.urls import host_of


@dataclass(frozen=True)
class Reader:
    """One path from one node. ``path`` is live, store or backfill, and ``node`` is a URL."""

    path: str
    node: str
    pubsub_topic: str

    @cached_property
    def name(self) -> str:
        """Return host and port of the node, for logs and metrics."""
        return host_of(self.node)
