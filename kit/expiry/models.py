"""The guard against mass expiry: a run that would expire more than a tenth of all rows waits for an operator.

With a clock that is half a year ahead, or after weeks without pushes, every row seems unused, and each phone has to
register an expired one again. So such a run expires nothing until an operator has allowed it. See docs/limits.md.
"""

from datetime import datetime, timedelta

import structlog
from django.db import models

log = structlog.get_logger(__name__)

# A run may expire this share of all rows, and always this number, because small servers would often exceed the share.
SHARE = 0.1
FEW = 10
# How long the permission of an operator is valid.
ALLOWED = timedelta(days=1)


class MassExpiry(models.Model):
    """A run that would expire ``count`` of ``total`` rows. For a day after ``allowed_at``, runs may do so."""

    name = models.TextField(primary_key=True)  # of the rows, such as "registrations"
    count = models.BigIntegerField()
    total = models.BigIntegerField()
    found_at = models.DateTimeField()
    allowed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.count} of {self.total} {self.name}"


def may_end(name: str, count: int, total: int, *, now: datetime) -> bool:
    """Return whether a run may expire ``count`` of ``total`` rows. If not, store the request for permission."""
    known = MassExpiry.objects.filter(name=name)
    if count <= max(FEW, SHARE * total):
        known.delete()
        return True
    if known.filter(allowed_at__gt=now - ALLOWED).exists():
        return True
    facts = {"count": count, "total": total, "allowed_at": None}
    MassExpiry.objects.update_or_create(name=name, defaults=facts, create_defaults={**facts, "found_at": now})
    log.error("mass_expiry_waits", name=name, count=count, total=total)
    return False


def allow(name: str, *, now: datetime) -> MassExpiry | None:
    """Allow the runs of the next day to expire their rows. Return the request that waited, or None without one."""
    found = waiting(name)
    if found:
        MassExpiry.objects.filter(name=name).update(allowed_at=now)
        log.warning("mass_expiry_allowed", name=name)
    return found


def waiting(name: str) -> MassExpiry | None:
    """Return the request with this name if it waits for permission."""
    return MassExpiry.objects.filter(name=name, allowed_at=None).first()
