"""Note how long the pages of each node's relay cache are, as only this shows the size of its ring.

A ring of 50 that overflows gives pages of exactly 50, again and again, and never a longer one.
"""

from django.core.cache import cache
from redis.exceptions import RedisError

from waku_bridge.node.config_check.readings import LongestPage
from waku_bridge.node.config_check.rules import DEFAULT_RINGS

KEY = "node_longest_page:{url}"
TTL_SECONDS = 86_400
# Most pages are shorter than this, and those say nothing about any ring.
TELLING_SIZE = min(DEFAULT_RINGS)


def note(url: str, size: int) -> None:
    """Note the size of a page if it says something. Never raises: reading goes on while the cache is away."""
    if size < TELLING_SIZE:
        return
    known = longest(url)
    if size < known.size:
        return
    times = known.times + 1 if size == known.size else 1
    try:
        cache.set(KEY.format(url=url), (size, times), TTL_SECONDS)
    except RedisError:
        return


def longest(url: str) -> LongestPage:
    """Return the longest page that was noted lately."""
    try:
        return LongestPage(*cache.get(KEY.format(url=url), (0, 0)))
    except RedisError:
        return LongestPage()
