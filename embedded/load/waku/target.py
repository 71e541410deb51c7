"""Targets that may be put under load without a confirmation. The module is pure."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Return whether a URL can only mean this machine. Names are not resolved, because their addresses may change."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
