"""Note how long the pages of each node's relay cache are, as only this shows the size of its ring.

A ring of 50 that overflows gives pages of exactly 50, again and again, and never a longer one.
"""

from kit.health.status_cache import StatusCache
from waku_bridge.node.config_check.readings import LongestPage
from waku_bridge.node.config_check.rules import DEFAULT_RINGS

LONGEST = StatusCache("node_longest_page", LongestPage, ttl_seconds=86_400)
# Most pages are shorter than this, and those say nothing about any ring.
TELLING_SIZE = min(DEFAULT_RINGS)


def note(url: str, size: int) -> None:
    """Note the size of a page if it says something."""
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
