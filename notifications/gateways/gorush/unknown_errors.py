"""Counting the errors that no rule knows. Sending only counts in memory; the table gets the sums once per batch."""

import threading
from collections import Counter
from datetime import datetime

import structlog
from django.db import DatabaseError, InterfaceError
from django.db.models import F

from kit.once import once
from notifications.gateways.gorush.metrics import UNKNOWN_ERRORS
from notifications.gateways.gorush.models import UnknownGatewayError
from notifications.gateways.gorush.platforms import NAMES

log = structlog.get_logger(__name__)

# A proxy that answers with ever new pages must fill neither the memory nor the table: the oldest give way.
MAX_SIGNATURES_HELD = 200
MAX_SIGNATURES_STORED = 1000

Key = tuple[str, str]  # platform, signature


class UnknownErrors:
    """What was counted since it was last recorded. The thread that sends and those that record use it together."""

    def __init__(self) -> None:
        self._counts: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def note(self, token_type: int, signature: str) -> None:
        """Count one error that no rule knows."""
        self._add({(NAMES[token_type], signature): 1})
        UNKNOWN_ERRORS.labels(NAMES[token_type]).inc()

    def record(self, *, now: datetime) -> None:
        """Add the counts to the table; without the database, keep them for the next time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        for key in sorted(counts):
            try:
                add(*key, counts[key], now=now)
            except (DatabaseError, InterfaceError) as error:
                log.warning("unknown_errors_not_recorded", error=type(error).__name__)
                return self._add(counts)
            del counts[key]
        return None

    def _add(self, counts: dict[Key, int]) -> None:
        with self._lock:
            for key, count in counts.items():
                if key in self._counts or len(self._counts) < MAX_SIGNATURES_HELD:
                    self._counts[key] += count


unknown_errors = once(UnknownErrors)


def add(platform: str, signature: str, count: int, *, now: datetime) -> None:
    """Add to the count of one error.

    Each statement stands alone, so that two workers that count the same errors never wait for each other in a circle.
    """
    rows = UnknownGatewayError.objects.filter(platform=platform, signature=signature)
    if rows.update(count=F("count") + count, last_seen_at=now):
        return
    seen = {"first_seen_at": now, "last_seen_at": now}
    _, is_new = UnknownGatewayError.objects.get_or_create(platform=platform, signature=signature, defaults=seen)
    rows.update(count=F("count") + count)
    if is_new:
        log.warning("gateway_error_unknown", platform=platform, signature=signature)
        _make_room()


def _make_room() -> None:
    newest_first = UnknownGatewayError.objects.order_by("-last_seen_at", "-pk").values_list("pk", flat=True)
    UnknownGatewayError.objects.filter(pk__in=list(newest_first[MAX_SIGNATURES_STORED:])).delete()
