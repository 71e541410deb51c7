"""Remember hashes that were read lately, in little memory, so that they are not asked for again. Pure.

Most messages of a shard are not for us, and a store is read again and again; without this, each pass would fetch them
all once more. Eight bytes of each hash stand for it. An attacker who wanted somebody else's message to be taken for
seen would have to find one of their own with the same eight bytes before it is read: 2^64 attempts, within seconds.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

CHUNK = 65_536
# Two million: at 450 messages per second, the 75 minutes that are searched for late ones. 16 MB.
CHUNKS = 32


class SeenHashes:
    """The newest ``chunk * chunks`` hashes at least, in a set that is sorted into an array whenever it is full."""

    def __init__(self, chunk: int = CHUNK, chunks: int = CHUNKS) -> None:
        self._chunk = chunk
        self._fresh: set[int] = set()
        self._sorted: deque[array[int]] = deque(maxlen=chunks)

    def __contains__(self, message_hash: bytes) -> bool:
        key = int.from_bytes(message_hash[:8])
        return key in self._fresh or any(_holds(chunk, key) for chunk in self._sorted)

    def add(self, hashes: Iterable[bytes]) -> None:
        self._fresh.update(int.from_bytes(message_hash[:8]) for message_hash in hashes)
        if len(self._fresh) >= self._chunk:
            self._sorted.appendleft(array("Q", sorted(self._fresh)))
            self._fresh = set()


def _holds(chunk: "array[int]", key: int) -> bool:
    place = bisect_left(chunk, key)
    return place < len(chunk) and chunk[place] == key
