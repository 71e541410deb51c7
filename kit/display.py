"""Values as pages, logs and alerts show them. The module does no I/O."""

from datetime import datetime
from urllib.parse import urlsplit


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 route", "1,200 routes". The plural adds an s unless ``plural`` is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def host_of(url: str) -> str:
    """Return the host and port of a URL, without user, password, path and query, which can all contain a credential."""
    return urlsplit(url).netloc.rpartition("@")[2]


def exact(at: datetime) -> str:
    """Return a time in UTC to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
