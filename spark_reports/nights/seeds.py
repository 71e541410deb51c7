"""The random seeds of pseudonym keys: made when a period is first exported, destroyed when none of it can be any more.

They are in the database, and the secret that they are used with is not: whoever has one of the two has no key.
"""

import secrets
from datetime import UTC, date, datetime, timedelta

from django.conf import settings

from spark_reports.models import PseudonymSeed

SIZE = 32


def seed_for(period: str, last_day: date) -> bytes:
    """Return the seed of a period, and make it when there is none."""
    facts = {"last_day": last_day, "seed": secrets.token_bytes(SIZE)}
    found, _ = PseudonymSeed.objects.get_or_create(period=period, defaults=facts)
    return bytes(found.seed)


def destroy_seeds(now: datetime) -> None:
    """Destroy the seeds of periods of which the database has nothing with a pseudonym left to export."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS + 1)
    PseudonymSeed.objects.filter(last_day__lt=(now - keep).astimezone(UTC).date()).delete()
