"""Forgetting: rows that nobody needs any more, removed little by little.

A purge is a sequence of small commits, so that it never holds a lock for long and can stop anywhere: what is left is
found by the next one.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from registrations.models import RegistrationEvent

CHUNK_SIZE = 2_000
Kind = RegistrationEvent.Kind
# After these an installation cannot be pushed to.
ENDS = (Kind.UNREGISTERED, Kind.TOKEN_DIED, Kind.EXPIRED)


def purge(*, now: datetime, keep: timedelta) -> Iterator[int]:
    """Remove the history of registrations older than ``keep``. Yields how many rows each step removed.

    The last event of an installation that can still be pushed to stays, however old: reports count who is active.
    """
    later = RegistrationEvent.objects.filter(pseudonym=OuterRef("pseudonym"), at__gt=OuterRef("at"))
    is_needed = ~Q(kind__in=ENDS) & ~Exists(later)
    return delete_in_chunks(RegistrationEvent.objects.filter(at__lt=now - keep).exclude(is_needed).order_by("at"))


def delete_in_chunks(rows: QuerySet[Any], size: int = CHUNK_SIZE) -> Iterator[int]:
    """Delete ordered rows with all that belongs to them. Yields how many of them each step removed."""
    while keys := list(rows.values_list("pk", flat=True)[:size]):
        rows.model._default_manager.filter(pk__in=keys).delete()  # noqa: SLF001
        yield len(keys)
