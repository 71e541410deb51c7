"""Record of the longest pages of each node's relay cache, the only evidence of the cache's capacity.

A cache of 50 that overflows returns pages of exactly 50, again and again, and never a longer one.
"""

from kit.processes.status import StatusCache
from waku_bridge.node.config_check.readings import LongestPage
from waku_bridge.node.config_check.rules import DEFAULT_RINGS

LONGEST = StatusCache("node_longest_page", LongestPage, ttl_seconds=86_400)
# A shorter page says nothing about the capacity, and most pages are shorter.
TELLING_SIZE = min(DEFAULT_RINGS)


def note(url: str, size: int) -> None:
    """Note the size of a page, unless it is too short to say anything about the capacity."""
    if size < TELLING_SIZE:
        return
    known = longest(url)
    if size < known.size:
        return
    times = known.times + 1 if size == known.size else 1
    LONGEST.save(LongestPage(size, times), url)


def longest(url: str) -> LongestPage:
    """Return the longest page that was noted lately."""
    return LONGEST.read(url) or LongestPage()
