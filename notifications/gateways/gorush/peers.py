"""Which gorush to ask: pure, the clock is an argument.

One that failed is asked last for a while. It is not left out: when all have failed, the least bad is better than none.
"""

from collections.abc import Sequence

# gorush is back within seconds of a restart; one that hangs should not get every push first for longer than that.
DISTRUST_SECONDS = 10.0


class Peers:
    """Base URLs in the operator's order, and when each may be trusted again (seconds of a monotonic clock)."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._trusted_from = dict.fromkeys(urls, 0.0)

    def in_order(self, now: float) -> list[str]:
        """The trusted ones in the operator's order, then the others, the one that failed first in front."""
        return sorted(self._trusted_from, key=lambda url: max(self._trusted_from[url] - now, 0.0))

    def failed(self, url: str, now: float) -> None:
        self._trusted_from[url] = now + DISTRUST_SECONDS

    def answered(self, url: str) -> None:
        self._trusted_from[url] = 0.0
