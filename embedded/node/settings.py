"""The settings of a development node. Their names follow nwaku's command line where it has them."""

from dataclasses import dataclass
from pathlib import Path

RELAY_CACHE_CAPACITY = 50
MAX_MESSAGE_BYTES = 1024 * 1024  # Status' fleet; nwaku's own default is 150 KiB
RETENTION_SECONDS = 172_800


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a development node at its start.

    `shards` are pubsub topics that are subscribed from the start and again after a restart. `data` is the SQLite file
    of the store. Without it the store is lost when the process ends.
    """

    data: Path | None = None
    relay_cache_capacity: int = RELAY_CACHE_CAPACITY
    shards: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    max_message_bytes: int = MAX_MESSAGE_BYTES
    retention_seconds: int = RETENTION_SECONDS
