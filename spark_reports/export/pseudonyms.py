"""Keys of the pseudonyms in the lake.

A pseudonym is HMAC-SHA-256 under a key of its period, shortened to 64 bits. That is enough to distinguish a hundred
million values, and useless without the key. PostgreSQL computes it with core functions only, so that no hash of the
protocol and no digest of a token leaves the database.

A key is made from the server's secret and the random seed of a period, which is made at the first export of the period
and destroyed when none of it can be exported. Seeds are in the database, and the secret is not, so that neither of them
alone leads to a key.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from django.conf import settings

from spark_reports.models import PseudonymSeed

BLOCK_SIZE = 64  # of SHA-256, in bytes
SEED_SIZE = 32


class Period(StrEnum):
    """The period during which pseudonyms stay the same."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    def label(self, day: date) -> str:
        formats = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
        return day.strftime(formats[self])

    def last_day(self, day: date) -> date:
        """Return the last day of the period that contains a day."""
        while self.label(day + timedelta(days=1)) == self.label(day):
            day += timedelta(days=1)
        return day


class Subject(StrEnum):
    """The role of the person behind a pseudonym.

    The role is part of the hashed value, so that one value has different pseudonyms in different roles.
    """

    RECIPIENT = "recipient"
    SENDER = "sender"


@dataclass(frozen=True, slots=True)
class PseudonymKey:
    """The key of a period.

    ``inner`` and ``outer`` are the padded keys of HMAC: sha256(outer ‖ sha256(inner ‖ subject ‖ 0 ‖ value)).
    """

    id: str
    inner: bytes
    outer: bytes

    def prefix(self, subject: Subject) -> bytes:
        return self.inner + subject.encode() + b"\0"


def key_for(day: date, secret: bytes, seed: bytes, period: Period) -> PseudonymKey:
    """Return the key of a day, computed from the server's secret and the random seed of the day's period.

    The key is the same while the seed exists, so that a day can be exported again. Seeds are independent of each other,
    and without its seed no key can be computed from the secret. The id of a key holds the period and a few digits of a
    hash of the key. It shows whether two days can be joined, and nothing else.
    """
    label = period.label(day)
    key = hmac.digest(secret, b"report pseudonyms " + label.encode() + b"\0" + seed, "sha256")
    mark = hashlib.sha256(b"report key id" + key).hexdigest()[:8]
    padded = key.ljust(BLOCK_SIZE, b"\0")
    return PseudonymKey(f"{label}-{mark}", bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded))


def seed_for(period: str, last_day: date) -> bytes:
    """Return the seed of a period. Make it if there is none."""
    facts = {"last_day": last_day, "seed": secrets.token_bytes(SEED_SIZE)}
    found, _ = PseudonymSeed.objects.get_or_create(period=period, defaults=facts)
    return bytes(found.seed)


def destroy_seeds(now: datetime) -> None:
    """Destroy the seeds of periods that have no exportable rows with pseudonyms left in the database."""
    keep = timedelta(days=settings.NOTIFICATION_RETENTION_DAYS + 1)
    PseudonymSeed.objects.filter(last_day__lt=(now - keep).astimezone(UTC).date()).delete()
