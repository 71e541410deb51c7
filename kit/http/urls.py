"""The part of a URL that may be shown and logged."""

from urllib.parse import urlsplit


def host_of(url: str) -> str:
    """Return the host and port, without user, password, path and query, which can all contain a credential."""
    return urlsplit(url).netloc.rpartition("@")[2]
