"""Random seeds of pseudonym keys: made at the first export of a period, destroyed when none of it can be exported.

A key is made from a seed and the server's secret. Seeds are in the database, and the secret is not, so that neither the
database nor the secret alone leads to a key.
"""

import secrets
from datetime import UTC, date, datetime, timedelta

from django.conf import settings

from spark_reports.models import PseudonymSeed

SIZE = 32


def seed_for(period: str, last_day: date) -> bytes:
    """Return the seed of a period. Make it if there is none."""
    facts = {"last_day": last_day, "seed": secrets.token_bytes(SIZE)}
    found, _ = PseudonymSeed.objects.get_or_create(period=period, defaults=facts)
    return bytes(found.seed)


def destroy_seeds(now: datetime) -> None:
    """Destroy the seeds of periods that have no exportable rows with pseudonyms left in the database."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS + 1)
    PseudonymSeed.objects.filter(last_day__lt=(now - keep).astimezone(UTC).date()).delete()
