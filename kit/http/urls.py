"""The part of an address that may be shown."""

from urllib.parse import urlsplit


def host_of(url: str) -> str:
    """Return the host and port, without user, password, path and query: any of these may hold a credential."""
    return urlsplit(url).netloc.rpartition("@")[2]
