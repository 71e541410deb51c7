"""The 4-byte topics in content topics, as integers, and a set of them that is small, quick to ask and quick to extend.
Pure.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator

PREFIX, SUFFIX = "/waku/1/0x", "/rfc26"
CONTENT_TOPIC_LENGTH = len(PREFIX) + 8 + len(SUFFIX)


def number(content_topic: str) -> int | None:
    """Return the 4-byte topic in a content topic of the canonical form, as an integer, or None.

    Other spellings of a number (capitals, signs, underscores) are other topics to Waku, and so to us.
    """
    if len(content_topic) != CONTENT_TOPIC_LENGTH or not content_topic.startswith(PREFIX):
        return None
    try:
        topic = int(content_topic[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None
    is_canonical = topic >= 0 and content_topic == f"{PREFIX}{topic:08x}{SUFFIX}"
    return topic if is_canonical else None


def content_topic(topic: int) -> str:
    """Return the content topic of a 4-byte topic."""
    return f"{PREFIX}{topic:08x}{SUFFIX}"


LOWER_BITS = 16
LOWER_MASK = 2**LOWER_BITS - 1


class TopicSet:
    """A set that has, for each value of a topic's upper two bytes, the lower two of its topics, sorted.

    A million topics take some 10 MB, a fifth of what a set of integers takes, and no object each. Adding one moves a
    few bytes. Names made up to fill one of the 65 536 arrays make it longer, not slower.

    Asking needs no lock while another thread adds, because an insertion is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._lower = [array("H") for _ in range(2**LOWER_BITS)]
        self._size = 0

    def __contains__(self, topic: int) -> bool:
        lower = self._lower[topic >> LOWER_BITS]
        last = topic & LOWER_MASK
        place = bisect_left(lower, last)
        return place < len(lower) and lower[place] == last

    def __iter__(self) -> Iterator[int]:
        for upper, lower in enumerate(self._lower):
            for last in lower:
                yield upper << LOWER_BITS | last

    def __len__(self) -> int:
        return self._size

    def fill(self, upper: int, lower: bytes) -> None:
        """Take in all topics that begin with ``upper``, by their lower two bytes (big-endian),
        sorted and none twice.
        """
        numbers = array("H", lower)
        if sys.byteorder == "little":
            numbers.byteswap()
        self._size += len(numbers) - len(self._lower[upper])
        self._lower[upper] = numbers

    def add(self, topic: int) -> bool:
        """Add a topic, and return whether it is new."""
        lower = self._lower[topic >> LOWER_BITS]
        last = topic & LOWER_MASK
        place = bisect_left(lower, last)
        if place < len(lower) and lower[place] == last:
            return False
        lower.insert(place, last)
        self._size += 1
        return True

    def discard(self, topic: int) -> None:
        """Remove a topic, if it is in.

        The array is replaced, because a thread that reads the old one at this moment must not see it shrink.
        """
        if topic in self:
            lower = self._lower[topic >> LOWER_BITS]
            place = bisect_left(lower, topic & LOWER_MASK)
            self._lower[topic >> LOWER_BITS] = lower[:place] + lower[place + 1 :]
            self._size -= 1
