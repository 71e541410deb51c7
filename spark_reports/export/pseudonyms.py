"""Keys of the pseudonyms in the lake.

A pseudonym is HMAC-SHA-256 under a key of its period, shortened to 64 bits: enough to tell a hundred million apart, and
useless without the key. It is computed inside PostgreSQL, from core functions only, so that no hash the protocol uses
and no digest of a token ever leaves the database.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

BLOCK_SIZE = 64  # of SHA-256


class Period(StrEnum):
    """How long pseudonyms stay the same."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    def label(self, day: date) -> str:
        formats = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
        return day.strftime(formats[self])

    def last_day(self, day: date) -> date:
        """Return the last day of the period that a day is in."""
        while self.label(day + timedelta(days=1)) == self.label(day):
            day += timedelta(days=1)
        return day


class Subject(StrEnum):
    """The role of the person behind a pseudonym.

    It is part of what is hashed, so that one value has different pseudonyms in different roles.
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
    """Return the key of a day, of the server's secret and the random seed of the day's period.

    It is always the same while the seed exists, so that a day can be exported again. No seed leads to another, and
    without it the secret leads to no key. Its id names the period and, by a few digits, the key: it tells whether two
    days can be joined, and nothing else.
    """
    label = period.label(day)
    key = hmac.digest(secret, b"report pseudonyms " + label.encode() + b"\0" + seed, "sha256")
    mark = hashlib.sha256(b"report key id" + key).hexdigest()[:8]
    padded = key.ljust(BLOCK_SIZE, b"\0")
    return PseudonymKey(f"{label}-{mark}", bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded))
