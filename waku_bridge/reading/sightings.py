"""Which path brought which message, compared two minutes later: what each of them missed. Pure, the clock is given.

Only for the metrics, and only of this process: a path that another bridge reads is not judged here.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

SETTLED_SECONDS = 120.0
# As many messages of ours as come in two minutes of the worst flood; of more, the oldest are not compared.
MAX_SIGHTINGS = 200_000


class Missed(StrEnum):
    STORE_ONLY = "store_only"  # by every live path
    LIVE_ONLY = "live_only"  # by every store
    STORE_MISSING = "store_missing"  # by this store, while another had it


@dataclass(frozen=True, slots=True)
class Reader:
    """One path of messages to us: ``path`` is live, store or backfill, ``node`` a URL."""

    path: str
    node: str
    pubsub_topic: str

    @property
    def name(self) -> str:
        """Host and port of the node, for logs and metrics."""
        return urlsplit(self.node).netloc.rpartition("@")[2]  # a URL may hold a password


@dataclass(slots=True)
class _Sighting:
    pubsub_topic: str
    at: float
    by: list[Reader] = field(default_factory=list)


class Sightings:
    """Each message of ours by its hash, until it is two minutes old."""

    def __init__(self) -> None:
        self._sightings: dict[bytes, _Sighting] = {}
        self._steady_since: dict[Reader, float] = {}

    def works(self, reader: Reader, now: float) -> None:
        """It reads, and has done so without a failure since it last said that it does not."""
        self._steady_since.setdefault(reader, now)

    def fails(self, reader: Reader) -> None:
        self._steady_since.pop(reader, None)

    def saw(self, reader: Reader, hashes: Iterable[bytes], new: Container[bytes], now: float) -> None:
        """``new`` are those that no path had brought before. What was brought to another process is not compared."""
        for message_hash in hashes:
            if message_hash in new:
                self._sightings[message_hash] = _Sighting(reader.pubsub_topic, now)
            sighting = self._sightings.get(message_hash)
            if sighting and reader not in sighting.by:
                sighting.by.append(reader)

    def settle(self, now: float) -> Iterator[tuple[Missed, str]]:
        """What was missed of all that is two minutes old, with the node that brought or missed it."""
        while self._sightings:
            message_hash, sighting = next(iter(self._sightings.items()))
            is_old = sighting.at <= now - SETTLED_SECONDS
            if not is_old and len(self._sightings) <= MAX_SIGHTINGS:
                return
            del self._sightings[message_hash]
            if is_old:
                yield from self._compare(sighting)

    def _compare(self, sighting: _Sighting) -> Iterator[tuple[Missed, str]]:
        """What was backfilled nobody wanted when it came: no path missed it."""
        if any(reader.path == "backfill" for reader in sighting.by):
            return
        steady = [
            reader
            for reader, since in self._steady_since.items()
            if reader.pubsub_topic == sighting.pubsub_topic and since <= sighting.at
        ]
        missing = [reader for reader in steady if reader not in sighting.by]
        live = [reader for reader in sighting.by if reader.path == "live"]
        stores = [reader for reader in sighting.by if reader.path == "store"]
        if not live and any(reader.path == "live" for reader in steady):
            yield Missed.STORE_ONLY, stores[0].name
        elif not stores and any(reader.path == "store" for reader in missing):
            yield Missed.LIVE_ONLY, live[0].name
        elif stores:
            yield from ((Missed.STORE_MISSING, reader.name) for reader in missing if reader.path == "store")
