"""How much waits to be delivered: more than a limit, and new requests are refused with INTERNAL_ERROR.

Counted every few seconds per process, so the limit is passed by what arrives in between; a sender that was told of the
failure repeats, and one that was told success can rely on it.
"""

from time import monotonic

from notifications.connections import once
from notifications.models import Notification
from notifications.transitions import DUE

COUNTED_EVERY_SECONDS = 3.0


class Backlog:
    def __init__(self) -> None:
        self._is_full = False
        self._counted_at = float("-inf")

    def is_full(self, limit: int) -> bool:
        if monotonic() - self._counted_at >= COUNTED_EVERY_SECONDS:
            self._is_full = self._count(limit) >= limit
            self._counted_at = monotonic()
        return self._is_full

    def _count(self, limit: int) -> int:
        """Up to the limit, by the partial index of what is due: a few dozen milliseconds when it is full."""
        return Notification.objects.filter(state__in=DUE)[:limit].count()


@once
def own_backlog() -> Backlog:
    """That of this process."""
    return Backlog()
