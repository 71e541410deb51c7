"""Ask before much ends at once.

A clock that is half a year ahead makes everything look unused, and what has ended has to be registered anew by its
phone. So a run that would end more than a tenth does nothing, until somebody says that it is right.
"""

from datetime import datetime, timedelta

import structlog

from kit.expiry.models import MassExpiry
from kit.health.filling import Expiring

log = structlog.get_logger(__name__)

# Of what is there. A few may always end, or small servers would ask all the time.
SHARE = 0.1
FEW = 10
# For so long what somebody allowed goes on.
ALLOWED = timedelta(days=1)


def may_end(name: str, count: int, total: int, *, now: datetime) -> bool:
    """Return whether a run may end so many of all that are there, and note it where somebody has to allow it."""
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


def allow(name: str, *, now: datetime) -> bool:
    """Let the next runs end what they found, for a day. Return whether something waits for that."""
    allowed = MassExpiry.objects.filter(name=name).update(allowed_at=now)
    if allowed:
        log.warning("mass_expiry_allowed", name=name)
    return bool(allowed)


def waiting() -> list[MassExpiry]:
    """Return what waits for somebody."""
    return list(MassExpiry.objects.filter(allowed_at=None))


def expiring(name: str) -> Expiring | None:
    """Return what of this name waits for somebody to allow it, if anything does."""
    found = {each.name: each for each in waiting()}.get(name)
    return Expiring(found.count, found.total, found.found_at) if found else None
